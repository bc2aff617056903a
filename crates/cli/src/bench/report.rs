//! What is printed: tables and JSON, with perftest's columns, units and keys.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::options::Kind;
use crate::output;

/// MiB/s is the default, Gb/s what `--report_gbits` wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Mebibytes,
    Gigabits,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mebibytes => "MiB/sec",
            Self::Gigabits => "Gb/sec",
        }
    }

    /// Bytes in one of them.
    fn bytes(self) -> f64 {
        match self {
            Self::Mebibytes => f64::from(1 << 20),
            Self::Gigabits => 1e9 / 8.0,
        }
    }
}

/// A line of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Row {
    Latency(LatencyRow, Vec<Bucket>),
    Duration(DurationRow, Vec<Bucket>),
    Bandwidth(Rates),
}

/// Latencies in µs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LatencyRow {
    #[serde(rename = "MsgSize")]
    pub(super) size: u32,
    #[serde(rename = "n_iterations")]
    pub(super) iterations: u64,
    #[serde(rename = "t_min")]
    pub(super) min: f64,
    #[serde(rename = "t_max")]
    pub(super) max: f64,
    #[serde(rename = "t_typical")]
    pub(super) typical: f64,
    #[serde(rename = "t_avg")]
    pub(super) average: f64,
    #[serde(rename = "t_stdev")]
    pub(super) deviation: f64,
    pub(super) percentile_99: f64,
    #[serde(rename = "percentile_99.9")]
    pub(super) percentile_99_9: f64,
}

/// Latency of a test that lasts a number of seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct DurationRow {
    #[serde(rename = "MsgSize")]
    pub(super) size: u32,
    #[serde(rename = "n_iterations")]
    pub(super) iterations: u64,
    /// µs.
    #[serde(rename = "t_avg")]
    pub(super) average: f64,
    /// Iterations a second.
    #[serde(rename = "tps_average")]
    pub(super) rate: f64,
}

/// Latencies of the bucket before up to this one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Bucket {
    /// µs, included.
    #[serde(rename = "up_to_usec")]
    pub(super) up_to: f64,
    pub(super) count: u64,
}

/// How fast messages went, in messages and seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Rates {
    pub(super) size: u32,
    pub(super) messages: u64,
    /// Messages a second; nothing if it was not looked for.
    pub(super) peak: Option<f64>,
    pub(super) average: f64,
    /// Where messages may be lost.
    pub(super) arrival: Option<Arrival>,
}

/// How many messages were sent, and how many of them were received.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Arrival {
    #[serde(rename = "n_sent")]
    pub(super) sent: u64,
    #[serde(rename = "n_received")]
    pub(super) received: u64,
}

#[derive(Serialize)]
struct BandwidthRow {
    #[serde(rename = "MsgSize")]
    size: u32,
    #[serde(rename = "n_iterations")]
    messages: u64,
    #[serde(rename = "BW_peak")]
    peak: f64,
    #[serde(rename = "BW_average")]
    average: f64,
    #[serde(rename = "MsgRate")]
    rate: f64,
    #[serde(flatten)]
    arrival: Option<Arrival>,
}

impl Rates {
    /// Of the client, with the other direction.
    pub(super) fn with(self, server: Self) -> Self {
        let both = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
        let arrival = self.arrival.zip(server.arrival).map(|(one, other)| Arrival {
            sent: one.sent + other.sent,
            received: one.received + other.received,
        });
        Self { peak: both(self.peak, server.peak), average: self.average + server.average, arrival, ..self }
    }

    fn row(&self, unit: Unit) -> BandwidthRow {
        let bandwidth = |rate: f64| rate * f64::from(self.size) / unit.bytes();
        BandwidthRow {
            size: self.size,
            messages: self.messages,
            peak: self.peak.map_or(0.0, bandwidth),
            average: bandwidth(self.average),
            rate: self.average / 1e6,
            arrival: self.arrival,
        }
    }
}

/// What a test is: perftest's `test_info`.
#[derive(Serialize)]
pub(super) struct TestInfo {
    pub(super) test: String,
    #[serde(rename = "Device")]
    pub(super) device: String,
    #[serde(rename = "Number_of_qps")]
    pub(super) num_qp: u32,
    #[serde(rename = "Connection_type")]
    pub(super) connection: String,
    #[serde(rename = "Transport_type")]
    pub(super) transport: &'static str,
    #[serde(rename = "TX_depth")]
    pub(super) tx_depth: u32,
    #[serde(rename = "RX_depth")]
    pub(super) rx_depth: u32,
    #[serde(rename = "Post_List")]
    pub(super) post_list: u32,
    #[serde(rename = "CQ_Moderation")]
    pub(super) cq_mod: u32,
    /// Bytes.
    #[serde(rename = "Mtu")]
    pub(super) mtu: u32,
    #[serde(rename = "Link_type")]
    pub(super) link: String,
    #[serde(rename = "GID_index")]
    pub(super) gid_index: u32,
    /// Bytes; of sends and writes.
    #[serde(rename = "Max_inline_data", skip_serializing_if = "Option::is_none")]
    pub(super) inline: Option<u32>,
    /// Of reads and atomics over RC.
    #[serde(rename = "Outstand_reads", skip_serializing_if = "Option::is_none")]
    pub(super) reads: Option<u8>,
    #[serde(rename = "Events")]
    pub(super) events: bool,
    /// Seconds, if the test lasts for some.
    #[serde(rename = "Duration", skip_serializing_if = "Option::is_none")]
    pub(super) duration: Option<u64>,
    /// Of bandwidths.
    #[serde(rename = "BW_unit", skip_serializing_if = "Option::is_none")]
    pub(super) unit: Option<&'static str>,
}

const LINE: &str = "---------------------------------------------------------------------------------------";

/// Prints a run as it goes on, or all of it at the end as JSON.
pub(super) struct Printer {
    /// Nothing at all.
    pub(super) quiet: bool,
    pub(super) json: bool,
    pub(super) histogram: bool,
    pub(super) unit: Unit,
}

impl Printer {
    /// Whether there is a table on standard output.
    pub(super) fn has_table(&self) -> bool {
        !self.quiet && !self.json
    }

    /// What is above the table but the addresses.
    pub(super) fn head(&self, info: &TestInfo) -> io::Result<()> {
        if !self.has_table() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{LINE}\n{:20}{}", "", info.test)?;
        let events = if info.events { "ON" } else { "OFF" };
        let mut pair = |one: &str, first: &dyn Display, other: &str, second: &dyn Display| {
            let first = first.to_string();
            writeln!(out, " {one:<16}: {first:<15} {other:<16}: {second}")
        };
        pair("Device", &info.device, "Transport type", &info.transport)?;
        pair("Number of qps", &info.num_qp, "Connection type", &info.connection)?;
        pair("TX depth", &info.tx_depth, "RX depth", &info.rx_depth)?;
        pair("Post List", &info.post_list, "CQ Moderation", &info.cq_mod)?;
        pair("Mtu", &format_args!("{}[B]", info.mtu), "Link type", &info.link)?;
        pair("GID index", &info.gid_index, "Events", &events)?;
        if let Some(inline) = info.inline {
            writeln!(out, " Max inline data : {inline}[B]")?;
        }
        if let Some(reads) = info.reads {
            writeln!(out, " Outstand reads  : {reads}")?;
        }
        writeln!(out, "{LINE}")
    }

    /// Names of columns.
    pub(super) fn columns(&self, kind: Kind, lasts: bool) -> io::Result<()> {
        if !self.has_table() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{LINE}")?;
        match (kind, lasts) {
            (Kind::Bw, _) => {
                let unit = self.unit.name();
                writeln!(
                    out,
                    " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
                )
            }
            (Kind::Lat, true) => writeln!(out, " #bytes     #iterations    t_avg[usec]    tps average"),
            (Kind::Lat, false) => writeln!(
                out,
                " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                 t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
            ),
        }
    }

    /// A line of the table.
    pub(super) fn row(&self, row: &Row) -> io::Result<()> {
        if !self.has_table() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match row {
            Row::Bandwidth(rates) => {
                let row = rates.row(self.unit);
                // As perftest: slow ones would be all zeros.
                let digits = if row.average < 0.1 && self.unit == Unit::Gigabits { 6 } else { 2 };
                let width = self.unit.name().len();
                writeln!(
                    out,
                    " {:<10} {:<14} {:<w1$.digits$} {:<w2$.digits$} {:.6}",
                    row.size,
                    row.messages,
                    row.peak,
                    row.average,
                    row.rate,
                    w1 = width + 12,
                    w2 = width + 14,
                )?;
                match row.arrival {
                    Some(Arrival { sent, received }) if received < sent => {
                        writeln!(out, " {received} of {sent} messages were received, the others were lost")
                    }
                    _ => Ok(()),
                }
            }
            Row::Duration(row, _) => writeln!(
                out,
                " {:<10} {:<14} {:<14.2} {:.2}",
                row.size, row.iterations, row.average, row.rate
            ),
            Row::Latency(row, _) => writeln!(
                out,
                " {:<10} {:<14} {:<14.2} {:<12.2} {:<18.2} {:<14.2} {:<15.2} {:<22.2} {:.2}",
                row.size,
                row.iterations,
                row.min,
                row.max,
                row.typical,
                row.average,
                row.deviation,
                row.percentile_99,
                row.percentile_99_9
            ),
        }?;
        out.flush()
    }

    /// What is below the table, or everything.
    pub(super) fn end(&self, info: &TestInfo, rows: &[Row]) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let results: Vec<_> = rows.iter().map(|row| self.value(row)).collect::<Result<_, _>>()?;
        output::print(self.json, &json!({ "test_info": info, "results": results }), |out, _| {
            writeln!(out, "{LINE}")?;
            if self.histogram {
                rows.iter().try_for_each(|row| print_histogram(out, row))?;
            }
            Ok(())
        })
    }

    fn value(&self, row: &Row) -> serde_json::Result<Value> {
        let (mut value, buckets) = match row {
            Row::Latency(row, buckets) => (serde_json::to_value(row)?, buckets.as_slice()),
            Row::Duration(row, buckets) => (serde_json::to_value(row)?, buckets.as_slice()),
            Row::Bandwidth(rates) => (serde_json::to_value(rates.row(self.unit))?, [].as_slice()),
        };
        if self.histogram {
            value["histogram"] = serde_json::to_value(buckets)?;
        }
        Ok(value)
    }
}

/// The widest bar.
const BAR: f64 = 50.0;

fn print_histogram(out: &mut dyn Write, row: &Row) -> io::Result<()> {
    let (size, buckets) = match row {
        Row::Latency(LatencyRow { size, .. }, buckets) | Row::Duration(DurationRow { size, .. }, buckets) => {
            (size, buckets)
        }
        Row::Bandwidth(_) => return Ok(()),
    };
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(1);
    writeln!(out, " {size} bytes\n up to[usec]       count")?;
    for Bucket { up_to, count } in buckets {
        let bar = "#".repeat((BAR * *count as f64 / most as f64).ceil() as usize);
        writeln!(out, " {up_to:<12.2} {count:>10} {bar}")?;
    }
    writeln!(out, "{LINE}")
}
