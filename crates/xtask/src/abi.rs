//! Comparison of the tables of `uverbs-uapi` with the kernel's own headers, through a C compiler.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use uverbs_uapi::abi::{HEADERS, Header};

/// How much has been found to agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Structs, by size.
    pub(crate) structs: usize,
    /// Fields, by offset and size.
    pub(crate) fields: usize,
    /// Constants, by value.
    pub(crate) constants: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { structs, fields, constants } = self;
        write!(f, "{structs} structs, {fields} fields, {constants} constants")
    }
}

/// Compares every struct, field and constant with the headers in `include_dirs`, which go before the
/// system's. The error lists all mismatches. `scratch` is a folder for the C program.
pub(crate) fn compare(include_dirs: &[PathBuf], scratch: &Path) -> Result<Report> {
    compare_headers(HEADERS, include_dirs, scratch)
}

/// One number to compare.
struct Check {
    what: String,
    /// C expression of an integer.
    expression: String,
    ours: u64,
}

fn compare_headers(headers: &[Header], include_dirs: &[PathBuf], scratch: &Path) -> Result<Report> {
    for dir in include_dirs {
        if !dir.is_dir() {
            bail!("{}: no such folder of kernel headers", dir.display());
        }
    }
    let mut report = Report::default();
    let mut checks = Vec::new();
    for header in headers {
        for layout in header.layouts {
            report.structs += 1;
            let c_type = c_type(layout.c_name);
            checks.push(Check {
                what: format!("size of {}", layout.c_name),
                expression: format!("sizeof({c_type})"),
                ours: layout.size as u64,
            });
            for field in layout.fields {
                report.fields += 1;
                let name = format!("{}.{}", layout.c_name, field.c_path);
                checks.push(Check {
                    what: format!("offset of {name}"),
                    expression: format!("offsetof({c_type}, {})", field.c_path),
                    ours: field.offset as u64,
                });
                checks.push(Check {
                    what: format!("size of {name}"),
                    expression: format!("sizeof((({c_type} *)0)->{})", field.c_path),
                    ours: field.size as u64,
                });
            }
        }
        for constant in header.constants {
            report.constants += 1;
            checks.push(Check {
                what: constant.c_name.to_owned(),
                expression: constant.c_name.to_owned(),
                ours: constant.value,
            });
        }
    }

    std::fs::create_dir_all(scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let mut mismatches = Vec::new();
    match kernel_values(headers, &checks, include_dirs, scratch)? {
        Answer::Values(values) => {
            for (check, kernel) in checks.iter().zip(values) {
                if check.ours != kernel {
                    mismatches.push(format!("{}: ours {}, kernel's {kernel}", check.what, check.ours));
                }
            }
        }
        Answer::Refused(errors) => mismatches = errors,
    }
    if !mismatches.is_empty() {
        bail!(
            "abi: {} mismatches with the kernel's headers:\n  {}",
            mismatches.len(),
            mismatches.join("\n  ")
        );
    }
    Ok(report)
}

/// The C type of a table's name: a dot leads to the unnamed struct that is a member of a named one.
fn c_type(c_name: &str) -> String {
    match c_name.split_once('.') {
        Some((outer, member)) => format!("__typeof__(((struct {outer} *)0)->{member})"),
        None => format!("struct {c_name}"),
    }
}

enum Answer {
    /// One value a check.
    Values(Vec<u64>),
    /// What the headers do not have.
    Refused(Vec<String>),
}

fn kernel_values(
    headers: &[Header],
    checks: &[Check],
    include_dirs: &[PathBuf],
    scratch: &Path,
) -> Result<Answer> {
    let source = scratch.join("abi.c");
    let program = scratch.join("abi");
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in headers {
        text += &format!("#include <{}>\n", header.include);
    }
    text += "int main(void)\n{\n";
    // One check a line, so that the line number of an error of the compiler tells the check.
    let first_line = text.lines().count() + 1;
    for check in checks {
        text += &format!("printf(\"%llu\\n\", (unsigned long long)({}));\n", check.expression);
    }
    text += "return 0;\n}\n";
    std::fs::write(&source, text).with_context(|| format!("cannot write {}", source.display()))?;

    let mut cc = Command::new("cc");
    cc.env("LC_ALL", "C").arg("-w");
    for dir in include_dirs {
        cc.arg("-isystem").arg(dir);
    }
    let output = cc
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .output()
        .context("cannot run the C compiler `cc`; install it (Debian: apt-get install gcc libc6-dev)")?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let errors = refusals(&stderr, &source, first_line, checks);
        if errors.is_empty() {
            bail!("`cc` failed on {}:\n{}", source.display(), stderr.trim_end());
        }
        return Ok(Answer::Refused(errors));
    }

    let output = Command::new(&program)
        .output()
        .with_context(|| format!("cannot run {}, just compiled", program.display()))?;
    let values = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::parse)
        .collect::<Result<Vec<u64>, _>>()
        .with_context(|| format!("{} printed something else than numbers", program.display()))?;
    if values.len() != checks.len() {
        bail!("{} printed {} values instead of {}", program.display(), values.len(), checks.len());
    }
    Ok(Answer::Values(values))
}

/// Errors of the compiler, with the check in place of the position; a missing header stays as it is.
fn refusals(stderr: &str, source: &Path, first_line: usize, checks: &[Check]) -> Vec<String> {
    let prefix = format!("{}:", source.display());
    stderr
        .lines()
        .filter(|line| line.contains("error: "))
        .map(|line| {
            let check = line
                .strip_prefix(&prefix)
                .and_then(|rest| rest.split(':').next())
                .and_then(|number| number.parse::<usize>().ok())
                .and_then(|number| number.checked_sub(first_line))
                .and_then(|index| checks.get(index));
            match (check, line.split_once("error: ")) {
                (Some(check), Some((_, message))) => {
                    format!("{}: ours {}, kernel's headers: {message}", check.what, check.ours)
                }
                _ => line.to_owned(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_uapi::abi::{Constant, Field, Layout};

    const TINY: &str = "struct tiny { int a; short b; struct { char c; } in; };\nenum { ONE = 1, TWO };\n";

    /// Compares with a folder that holds the header `tiny.h`.
    fn compare_tiny(name: &str, header: Header) -> Result<Report> {
        let dir = std::env::temp_dir().join(format!("uverbs-abi-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("tiny.h"), TINY)?;
        let result = compare_headers(&[header], std::slice::from_ref(&dir), &dir.join("scratch"));
        std::fs::remove_dir_all(&dir)?;
        result
    }

    const RIGHT: Header = Header {
        include: "tiny.h",
        layouts: &[
            Layout {
                c_name: "tiny",
                size: 8,
                fields: &[
                    Field { c_path: "a", offset: 0, size: 4 },
                    Field { c_path: "b", offset: 4, size: 2 },
                    Field { c_path: "in.c", offset: 6, size: 1 },
                ],
            },
            Layout { c_name: "tiny.in", size: 1, fields: &[Field { c_path: "c", offset: 0, size: 1 }] },
        ],
        constants: &[Constant { c_name: "ONE", value: 1 }, Constant { c_name: "TWO", value: 2 }],
    };

    #[test]
    fn right_table_agrees() {
        let report = compare_tiny("right", RIGHT).unwrap();
        assert_eq!(report, Report { structs: 2, fields: 4, constants: 2 });
        assert_eq!(report.to_string(), "2 structs, 4 fields, 2 constants");
    }

    #[test]
    fn all_wrong_entries_are_reported() {
        let header = Header {
            layouts: &[Layout {
                c_name: "tiny",
                size: 12,
                fields: &[
                    Field { c_path: "b", offset: 6, size: 2 },
                    Field { c_path: "a", offset: 0, size: 8 },
                ],
            }],
            constants: &[Constant { c_name: "ONE", value: 1 }, Constant { c_name: "TWO", value: 3 }],
            ..RIGHT
        };
        let error = compare_tiny("wrong", header).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "abi: 4 mismatches with the kernel's headers:",
                "size of tiny: ours 12, kernel's 8",
                "offset of tiny.b: ours 6, kernel's 4",
                "size of tiny.a: ours 8, kernel's 4",
                "TWO: ours 3, kernel's 2",
            ]
        );
    }

    #[test]
    fn missing_names_are_reported() {
        let header = Header {
            layouts: &[Layout {
                c_name: "tiny",
                size: 8,
                fields: &[Field { c_path: "gone", offset: 0, size: 4 }],
            }],
            constants: &[Constant { c_name: "THREE", value: 3 }, Constant { c_name: "FOUR", value: 4 }],
            ..RIGHT
        };
        let error = compare_tiny("missing", header).unwrap_err().to_string();
        for name in ["tiny.gone: ours 0, kernel's headers: ", "THREE: ours 3", "FOUR: ours 4"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn missing_header_and_folder_are_reported() {
        let error = compare_tiny("header", Header { include: "gone.h", ..RIGHT }).unwrap_err().to_string();
        assert!(error.contains("gone.h"), "{error}");
        let folder = PathBuf::from("no/such/folder");
        let error = compare_headers(&[RIGHT], &[folder], Path::new("unused")).unwrap_err().to_string();
        assert!(error.starts_with("no/such/folder: "), "{error}");
    }
}
