//! `uverbs bench`: latency and bandwidth of operations, with the letters, columns and units of perftest.

mod agreed;
mod end;
mod exchange;
mod limits;
mod options;
mod plan;
mod report;
mod stats;
#[cfg(test)]
mod tests;
mod traffic;
mod watch;

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use uverbs::{CompletionError, Context, GidEntry, RemoteMemory};

pub(crate) use options::Command;

use crate::connect::{Endpoint, Route, announce, open, own_gid};
use crate::peer::Peer;
use agreed::{Role, Test};
use end::End;
use exchange::{Message, Told};
use limits::Limits;
use options::{Connection, Kind};
use plan::Plan;
use report::{Printer, TestInfo, Unit};

pub(crate) fn run(command: &Command, json: bool) -> Result<()> {
    let options = command.options();
    let context = open(options.device.as_deref(), options.loopback, json)?;
    let limits = Limits::new(&context, options.ib_port)?;
    // What is wrong shows before anybody connects.
    if let Some(index) = options.gid_index {
        context.query_gid(options.ib_port, u32::from(index))?;
    }
    let unit = match command.queues() {
        Some(queues) if queues.report_gbits => Unit::Gigabits,
        _ => Unit::Mebibytes,
    };
    let printer = Printer { quiet: false, json, histogram: command.wants_histogram(), unit };
    let bench = Bench { command, limits: &limits, context: &context, printer };
    if options.loopback {
        let [client, server] = Peer::pair(options.timeout())?;
        let context = context.device().open()?;
        let quiet = Printer { quiet: true, ..bench.printer };
        let other = Bench { context: &context, printer: quiet, ..bench };
        thread::scope(|scope| {
            let server = scope.spawn(|| other.serve(server));
            let outcome = bench.ask(client);
            let served = server.join().unwrap_or_else(|_| Err(anyhow!("the server has panicked")));
            // If both fail, the client tells the reason of either.
            outcome.and(served)
        })?;
    } else if let Some(host) = &options.host {
        // As much as can be is looked at before.
        Plan::new(Test::new(command, &limits)?, command, &limits, Role::Client)?;
        bench.ask(Peer::connect(host, options.port, options.timeout())?)?;
    } else {
        let listener = Peer::listen(options.port)?;
        if bench.printer.has_table() {
            let mut out = std::io::stdout().lock();
            writeln!(out, "Waiting for a client on TCP port {}", options.port)?;
            out.flush()?;
        }
        bench.serve(Peer::accept(listener, options.timeout())?)?;
    }
    Ok(context.close().map_err(uverbs::Error::from)?)
}

/// One end of a bench.
struct Bench<'a> {
    command: &'a Command,
    limits: &'a Limits,
    context: &'a Context,
    printer: Printer,
}

impl Bench<'_> {
    fn ask(&self, mut peer: Peer) -> Result<()> {
        let outcome = self.run_as_client(&mut peer);
        tell(outcome, &mut peer)
    }

    fn serve(&self, mut peer: Peer) -> Result<()> {
        let outcome = self.run_as_server(&mut peer);
        tell(outcome, &mut peer)
    }

    fn run_as_client(&self, peer: &mut Peer) -> Result<()> {
        let test = Test::new(self.command, self.limits)?;
        let plan = Plan::new(test, self.command, self.limits, Role::Client)?;
        self.with_end(&plan, peer, |own, peer, connect| {
            Message::Hello { test: plan.test.clone(), end: own }.send(peer)?;
            match Message::receive(peer, "welcomed this end")? {
                Message::Welcome(theirs) => connect(theirs)?,
                other => other.out_of_turn(peer)?,
            }
            Message::Ready.send(peer)
        })
    }

    fn run_as_server(&self, peer: &mut Peer) -> Result<()> {
        let (test, theirs) = match Message::receive(peer, "said hello")? {
            Message::Hello { test, end } => (test, end),
            other => other.out_of_turn(peer)?,
        };
        test.agree(self.command)?;
        let plan = Plan::new(test, self.command, self.limits, Role::Server)?;
        self.with_end(&plan, peer, |own, peer, connect| {
            connect(theirs)?;
            Message::Welcome(own).send(peer)?;
            match Message::receive(peer, "connected")? {
                Message::Ready => Ok(()),
                other => other.out_of_turn(peer),
            }
        })
    }

    /// Makes an end, meets the peer, and runs the test.
    fn with_end(
        &self,
        plan: &Plan,
        peer: &mut Peer,
        meet: impl FnOnce(Told, &mut Peer, &mut dyn FnMut(Told) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let (context, options) = (self.context, self.command.options());
        let domain = context.alloc_protection_domain()?;
        let mut end = End::new(plan, context, &domain)?;
        let gid = own_gid(context, options.ib_port, options.gid_index, peer.family())?;
        let port = context.query_port(options.ib_port)?;
        let endpoints: Vec<_> =
            end.qp_nums().map(|qp_num| Endpoint::new(port.lid, gid.gid, qp_num)).collect();
        let RemoteMemory { address, rkey } = end.target();
        let told = Told {
            endpoints: endpoints.clone(),
            mtu: plan.mtu.bytes(),
            address,
            rkey,
            reads: self.limits.reads[1],
        };
        let mut info = None;
        meet(told, peer, &mut |theirs| {
            let route = self.route(plan, &gid, &theirs)?;
            let remote = RemoteMemory { address: theirs.address, rkey: theirs.rkey };
            end.connect(&endpoints, &theirs.endpoints, remote, &route)?;
            let about = self.about(plan, &end, &route, port.link_layer.to_string());
            self.printer.head(&about)?;
            announce(!self.printer.has_table(), &endpoints, &theirs.endpoints)?;
            self.printer.columns(plan.test.kind, plan.test.duration.is_some())?;
            info = Some(about);
            Ok(())
        })?;
        let mut rows = Vec::new();
        for &size in &plan.test.sizes {
            let row = traffic::run(&mut end, peer, size, options.timeout(), self.printer.has_table());
            let row = row.map_err(|error| with_reason_of_peer(error, peer))?;
            self.printer.row(&row)?;
            rows.push(row);
        }
        // Everything goes by the kernel's own word, so that a fault in the order of things shows.
        end.destroy()?;
        domain.destroy().map_err(uverbs::Error::from)?;
        info.map_or(Ok(()), |info| self.printer.end(&info, &rows))
    }

    fn route(&self, plan: &Plan, gid: &GidEntry, theirs: &Told) -> Result<Route> {
        let Some(peers_mtu) = uverbs::Mtu::from_bytes(theirs.mtu) else {
            bail!("the peer has a path MTU of {} bytes", theirs.mtu);
        };
        let mtu = plan.mtu.min(peers_mtu);
        let size = plan.test.largest();
        ensure!(
            plan.test.connection != Connection::Ud || self.limits.is_efa || size <= mtu.bytes(),
            "EINVAL: --size {size} is more than a datagram to the peer, {mtu}"
        );
        let [own_reads, peers_reads] = self.limits.reads;
        Ok(Route {
            port: plan.port,
            gid: *gid,
            service_level: self.command.options().sl,
            mtu,
            reads: [own_reads.min(theirs.reads), peers_reads],
        })
    }

    fn about(&self, plan: &Plan, end: &End<'_>, route: &Route, link: String) -> TestInfo {
        let test = &plan.test;
        let carries = test.carries_data();
        TestInfo {
            test: test.title(plan.post_list),
            device: self.limits.name.clone(),
            num_qp: test.num_qp,
            connection: test.connection.to_string(),
            // As perftest has it.
            transport: if self.limits.is_efa { "Unknown" } else { "IB" },
            tx_depth: plan.tx_depth,
            rx_depth: plan.rx_depth,
            post_list: plan.post_list,
            cq_mod: plan.cq_mod,
            mtu: route.mtu.bytes(),
            link,
            gid_index: route.gid.index,
            inline: carries.then(|| end.inline()),
            reads: (!carries && test.connection == Connection::Rc).then_some(route.reads[0]),
            events: plan.events,
            duration: test.duration,
            unit: (test.kind == Kind::Bw).then(|| self.printer.unit.name()),
        }
    }
}

/// The peer hears why this end fails, if it is there still.
fn tell(outcome: Result<()>, peer: &mut Peer) -> Result<()> {
    if let Err(error) = &outcome {
        // The reason is what matters.
        _ = Message::Failed { reason: format!("{error:#}") }.send(peer);
    }
    outcome
}

/// An operation may have failed because the peer has: then what is known of that comes first.
fn with_reason_of_peer(error: anyhow::Error, peer: &mut Peer) -> anyhow::Error {
    if error.downcast_ref::<CompletionError>().is_none() {
        return error;
    }
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        match peer.has_spoken() {
            Ok(true) => match Message::receive(peer, "finished") {
                Ok(_) => {}
                Err(reason) => return error.context(reason.to_string()),
            },
            Ok(false) => thread::sleep(Duration::from_millis(10)),
            Err(reason) => return error.context(reason.to_string()),
        }
    }
    error
}
