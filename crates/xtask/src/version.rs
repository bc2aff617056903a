//! The order of Debian version numbers.

use std::cmp::Ordering;

/// Compares two versions as dpkg does: runs of digits as numbers, the rest by character, `~` before everything, even
/// before the end.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = split_epoch(a, b);
    loop {
        let (text_a, text_b) = (take(&mut a, |c| !c.is_ascii_digit()), take(&mut b, |c| !c.is_ascii_digit()));
        let weights = |text: &str| text.bytes().map(weight).chain([0]).collect::<Vec<i32>>();
        let order = weights(text_a).cmp(&weights(text_b));
        if order != Ordering::Equal {
            return order;
        }
        let (number_a, number_b) =
            (take(&mut a, |c| c.is_ascii_digit()), take(&mut b, |c| c.is_ascii_digit()));
        let (number_a, number_b) = (number_a.trim_start_matches('0'), number_b.trim_start_matches('0'));
        let order = number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b));
        if order != Ordering::Equal || (a.is_empty() && b.is_empty()) {
            return order;
        }
    }
}

/// An epoch is written only when it is not 0; a difference decides at once.
fn split_epoch<'a>(a: &'a str, b: &'a str) -> (&'a str, &'a str) {
    match (a.split_once(':'), b.split_once(':')) {
        (Some((epoch_a, rest_a)), Some((epoch_b, rest_b))) if epoch_a == epoch_b => (rest_a, rest_b),
        (Some(_), Some(_)) => (a, b),
        (Some(_), None) => ("1", "0"),
        (None, Some(_)) => ("0", "1"),
        (None, None) => (a, b),
    }
}

fn take<'a>(text: &mut &'a str, wanted: impl Fn(char) -> bool) -> &'a str {
    let end = text.find(|c| !wanted(c)).unwrap_or(text.len());
    let (head, tail) = text.split_at(end);
    *text = tail;
    head
}

fn weight(byte: u8) -> i32 {
    match byte {
        b'~' => -1,
        letter if letter.is_ascii_alphabetic() => i32::from(letter),
        other => 256 + i32::from(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_dpkg() {
        let ascending = [
            "1.0~rc1-1",
            "1.0-1",
            "1.0-1+deb12u1",
            "6.1.9-1",
            "6.1.176-1",
            "6.1.192-3",
            "6.12.117-1",
            "6.12.118-1",
            "7.3.4-1~bpo13+1",
            "7.3.4-1",
            "7.3.10-1",
            "1:0.1",
            "2:0.1",
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a} against {b}");
            }
        }
        assert_eq!(compare("1.007", "1.7"), Ordering::Equal);
    }
}
