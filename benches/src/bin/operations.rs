//! What is measured, one operation after the other. `benches/reference/operations.c` is the same for libibverbs: both do the same in the same
//! order, with the same sizes, depths and flags. The program `compare` runs both.
//!
//! `operations DEVICE time OPERATION...` prints for each its name, nanoseconds and how many times it was done in them: the least of some rounds,
//! less what it takes to read the clock. With `step` it has a breakpoint before and after each stretch, for a tracer that counts the steps
//! between. `operations DEVICE list` prints the nanoseconds that the first listing of a process takes, `open` and `completion` the time of the
//! clock when the device is open and when the first completion is there, `memory` what is resident, in KiB, with 1000 queue pairs.

#[cfg(target_arch = "x86_64")]
fn main() -> anyhow::Result<()> {
    operations::run()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("operations knows the breakpoints of x86-64 only");
    std::process::exit(2);
}

#[cfg(target_arch = "x86_64")]
mod operations {
    use std::arch::asm;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use anyhow::{Context as _, Result, bail, ensure};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::time::{ClockId, clock_gettime};
    use nix::unistd::alarm;
    use uverbs::{
        AccessFlags, AddressVector, CompletionChannel, CompletionQueue, Context, CounterOperations,
        CounterType, Device, Gid, Memory, MemoryRegion, MemoryWindowType, ModifyQueuePair, Mtu,
        ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairInit, ReceiveRequest, ScatterGather,
        SendRequest, WorkCompletion,
    };

    const DEPTH: u32 = 256;
    const BATCH: u32 = 32;
    const MESSAGE: usize = 64;
    const PORT: u8 = 1;
    const GID_INDEX: u8 = 1;
    const ROUNDS: u32 = 7;
    const STEPPED_ROUNDS: u32 = 2;
    const STEPPED_TIMES: u32 = 16;
    const MANY: usize = 1000;
    const COUNTED: u64 = 42;
    /// Seconds.
    const LIFE: u32 = 300;
    const PATIENCE: Duration = Duration::from_secs(5);

    pub(super) fn run() -> Result<()> {
        // A completion that is lost ends the program. Deadlines of their own would take what is not to be measured.
        alarm::set(LIFE);
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match words[..] {
            [device, "time", ref wanted @ ..] => measure(device, wanted, Meter::new(false)),
            [device, "step", ref wanted @ ..] => measure(device, wanted, Meter::new(true)),
            [_, "list"] => {
                let before = now();
                let devices = Device::list()?;
                println!("{}", now() - before);
                drop(devices);
                Ok(())
            }
            [device, "open"] => {
                let context = Device::find(device)?.open()?;
                println!("{}", now());
                drop(context);
                Ok(())
            }
            [device, "completion"] => first_completion(device),
            [device, "memory"] => many_queue_pairs(device),
            _ => bail!(
                "usage: operations DEVICE time|step OPERATION...\n       operations DEVICE list|open|completion|memory"
            ),
        }
    }

    fn now() -> u64 {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is such a clock");
        Duration::from(time).as_nanos() as u64
    }

    #[repr(u64)]
    enum Marker {
        Start = 1,
        Stop,
        RoundOver,
        OperationOver,
    }

    struct Meter {
        stepping: bool,
        began: u64,
        spent: u64,
        overhead: u64,
        least: u64,
    }

    impl Meter {
        fn new(stepping: bool) -> Self {
            Self { stepping, began: 0, spent: 0, overhead: 0, least: u64::MAX }
        }

        /// The tracer looks at what is between `Start` and `Stop`.
        #[inline(always)]
        fn mark(&self, marker: Marker) {
            // SAFETY: the tracer, which is there in this mode, takes the breakpoint and changes nothing.
            unsafe { asm!("int3", in("rax") marker as u64) };
        }

        /// It takes the same wherever it is called from, and so can be taken off.
        #[inline(never)]
        fn start(&mut self) {
            if self.stepping {
                self.mark(Marker::Start);
            } else {
                self.began = now();
            }
        }

        #[inline(never)]
        fn stop(&mut self) {
            if self.stepping {
                self.mark(Marker::Stop);
            } else {
                self.spent += now() - self.began - self.overhead;
            }
        }

        fn round_over(&mut self) {
            if self.stepping {
                self.mark(Marker::RoundOver);
            } else {
                self.least = self.least.min(self.spent);
            }
            self.spent = 0;
        }

        fn operation_over(&mut self, name: &str, count: u32) {
            if self.stepping {
                self.mark(Marker::OperationOver);
            }
            println!("{name} {} {count}", self.least);
            self.least = u64::MAX;
        }

        fn rounds(&self) -> u32 {
            if self.stepping { STEPPED_ROUNDS } else { ROUNDS }
        }

        fn times(&self, count: u32) -> u32 {
            match count {
                _ if !self.stepping => count,
                0..STEPPED_TIMES => 1,
                _ => STEPPED_TIMES,
            }
        }

        /// Measures what is done so many times in a round.
        #[inline(always)]
        fn repeat(&mut self, count: u32, mut operation: impl FnMut() -> Result<()>) -> Result<u32> {
            let count = self.times(count);
            for _ in 0..self.rounds() {
                self.start();
                for _ in 0..count {
                    operation()?;
                }
                self.stop();
                self.round_over();
            }
            Ok(count)
        }
    }

    struct Setup {
        domain: ProtectionDomain,
        _region: MemoryRegion,
        source: [ScatterGather; 1],
        target: [ScatterGather; 1],
        gid: Gid,
        context: Context,
    }

    impl Setup {
        fn new(name: &str) -> Result<Self> {
            let context = Device::find(name)?.open()?;
            let domain = context.alloc_protection_domain()?;
            let region = domain.allocate(4096, AccessFlags::LOCAL_WRITE)?;
            let (source, target) = ([region.sge(0..MESSAGE)], [region.sge(MESSAGE..2 * MESSAGE)]);
            // Not on EFA, where nothing is connected.
            let gid = context.query_gid(PORT, GID_INDEX.into()).map(|entry| entry.gid).unwrap_or_default();
            Ok(Self { domain, _region: region, source, target, gid, context })
        }

        fn queue(&self, entries: u32, channel: Option<&CompletionChannel>) -> Result<CompletionQueue> {
            Ok(self.context.create_completion_queue(entries, channel, 0)?)
        }

        fn queue_pair(
            &self,
            send_cq: &CompletionQueue,
            recv_cq: &CompletionQueue,
            depth: u32,
        ) -> Result<QueuePair> {
            let capabilities =
                QueuePairCapabilities { max_send_wr: depth, max_recv_wr: depth, ..Default::default() };
            let init = QueuePairInit { recv_cq, capabilities, ..QueuePairInit::reliable_connection(send_cq) };
            Ok(self.domain.create_queue_pair(&init)?)
        }

        fn address(&self) -> AddressVector {
            AddressVector::global(PORT, self.gid, GID_INDEX)
        }

        fn connect(&self, qp: &mut QueuePair, peer: u32) -> Result<()> {
            qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::empty()))?;
            qp.modify(&ModifyQueuePair::ready_to_receive(self.address(), peer, 0, Mtu::Bytes1024))?;
            Ok(qp.modify(&ModifyQueuePair::ready_to_send(0))?)
        }

        /// A QP connected to itself.
        fn connected(&self, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Result<QueuePair> {
            let mut qp = self.queue_pair(send_cq, recv_cq, DEPTH)?;
            let own = qp.qp_num();
            self.connect(&mut qp, own)?;
            Ok(qp)
        }

        /// Requests, ready but for their `wr_id`.
        fn requests(&self) -> Requests<'_> {
            Requests {
                receive: [ReceiveRequest::new(0, &self.target)],
                send: [SendRequest::send(0, &self.source).signaled()],
            }
        }

        /// Completions of so many sends are in the send CQ when it returns.
        fn fill(&self, qp: &mut QueuePair, recv_cq: &mut CompletionQueue, count: u32) -> Result<()> {
            let mut requests = self.requests();
            requests.post_receives(qp, count)?;
            for wr_id in 0..u64::from(count) {
                requests.post_send(qp, wr_id)?;
            }
            await_completions(recv_cq, count)?;
            // The acknowledgements.
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        }
    }

    struct Requests<'a> {
        receive: [ReceiveRequest<'a>; 1],
        send: [SendRequest<'a>; 1],
    }

    impl Requests<'_> {
        #[inline(always)]
        fn post_receives(&mut self, qp: &mut QueuePair, count: u32) -> Result<()> {
            for wr_id in 0..u64::from(count) {
                self.receive[0].wr_id = wr_id;
                qp.post_receive(&self.receive)?;
            }
            Ok(())
        }

        #[inline(always)]
        fn post_send(&mut self, qp: &mut QueuePair, wr_id: u64) -> Result<()> {
            self.send[0].wr_id = wr_id;
            Ok(qp.post_send_list(&self.send)?)
        }
    }

    fn await_completions(cq: &mut CompletionQueue, count: u32) -> Result<()> {
        let deadline = now() + PATIENCE.as_nanos() as u64;
        let (mut left, mut room) = (count as usize, [WorkCompletion::default(); 16]);
        while left > 0 {
            let most = left.min(room.len());
            for completion in cq.poll(&mut room[..most]) {
                completion.success()?;
                left -= 1;
            }
            ensure!(now() < deadline, "{left} completions are missing");
            // There is one processor: the kernel's side has to run.
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Until the kernel's threads sleep, so that each doorbell wakes one.
    fn let_it_sleep() {
        std::thread::sleep(Duration::from_millis(1));
    }

    type Operation = fn(&Setup, &mut Meter) -> Result<u32>;

    const OPERATIONS: &[(&str, Operation)] = &[
        ("list-warm", |_, meter| meter.repeat(10, || seen(Device::list()))),
        ("open-close", open_close),
        ("query-device", |setup, meter| meter.repeat(10, || seen(setup.context.query_device()))),
        ("query-port", |setup, meter| meter.repeat(10, || seen(setup.context.query_port(PORT)))),
        ("query-gid", |setup, meter| {
            meter.repeat(10, || seen(setup.context.query_gid(PORT, GID_INDEX.into())))
        }),
        ("mr-4k", |setup, meter| register(setup, meter, 4096)),
        ("mr-1m", |setup, meter| register(setup, meter, 1 << 20)),
        ("cq", |setup, meter| meter.repeat(10, || destroyed(setup.queue(DEPTH, None)?.destroy()))),
        ("qp", |setup, meter| {
            let cq = setup.queue(DEPTH, None)?;
            meter.repeat(10, || destroyed(setup.queue_pair(&cq, &cq, DEPTH)?.destroy()))
        }),
        ("srq", |setup, meter| {
            meter.repeat(10, || destroyed(setup.domain.create_shared_receive_queue(DEPTH, 1)?.destroy()))
        }),
        ("ah", |setup, meter| {
            let address = setup.address();
            meter.repeat(10, || destroyed(setup.domain.create_address_handle(&address)?.destroy()))
        }),
        ("mw", |setup, meter| {
            meter.repeat(10, || {
                destroyed(setup.domain.alloc_memory_window(MemoryWindowType::Type2)?.destroy())
            })
        }),
        ("modify-to-rts", modify_to_rts),
        ("post-receive", post_receive),
        ("post-send", post_send),
        ("batch-list", batch_list),
        ("batch-builder", batch_builder),
        ("poll-empty", |setup, meter| {
            let mut cq = setup.queue(16, None)?;
            let mut room = [WorkCompletion::default(); 16];
            meter.repeat(100_000, || {
                ensure!(cq.poll(&mut room).is_empty());
                Ok(())
            })
        }),
        ("poll-1", poll_full::<1>),
        ("poll-16", poll_full::<16>),
        ("iterate-1", iterate_full::<1>),
        ("iterate-16", iterate_full::<16>),
        ("arm-event-ack", arm_event_ack),
        ("ping-pong", ping_pong),
        ("counter-create", |setup, meter| {
            meter.repeat(10, || {
                destroyed(setup.context.create_completion_counter(CounterType::WorkRequests)?.destroy())
            })
        }),
        ("counter-attach", attach_counter),
        ("counter-read", read_counter),
        ("counter-inc", |setup, meter| {
            let counter = setup.context.create_completion_counter(CounterType::WorkRequests)?;
            meter.repeat(10, || Ok(counter.inc(1)?))
        }),
    ];

    fn measure(device: &str, wanted: &[&str], mut meter: Meter) -> Result<()> {
        let setup = Setup::new(device)?;
        if let Some(unknown) = wanted.iter().find(|name| OPERATIONS.iter().all(|(known, _)| known != *name)) {
            bail!("no operation {unknown}");
        }
        let count = meter.repeat(1, || Ok(()))?;
        if !meter.stepping {
            meter.overhead = meter.least;
        }
        meter.operation_over("nothing", count);
        for (name, operation) in OPERATIONS.iter().filter(|(name, _)| wanted.contains(name)) {
            let count = operation(&setup, &mut meter).with_context(|| (*name).to_owned())?;
            meter.operation_over(name, count);
        }
        Ok(())
    }

    fn seen<T>(outcome: uverbs::Result<T>) -> Result<()> {
        std::hint::black_box(outcome?);
        Ok(())
    }

    fn destroyed<T>(outcome: std::result::Result<(), uverbs::DestroyError<T>>) -> Result<()> {
        Ok(outcome.map_err(uverbs::Error::from)?)
    }

    fn register(setup: &Setup, meter: &mut Meter, length: usize) -> Result<u32> {
        let memory = Memory::anonymous(length)?;
        // SAFETY: the memory is that long and ours.
        unsafe { memory.as_ptr().write_bytes(1, length) };
        meter.repeat(10, || {
            // SAFETY: the memory outlives the region, and nobody looks into it.
            let region =
                unsafe { setup.domain.register_raw(memory.as_ptr(), length, AccessFlags::LOCAL_WRITE) };
            destroyed(region?.destroy())
        })
    }

    fn open_close(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let count = meter.times(10);
        for _ in 0..meter.rounds() {
            let device = Device::find(setup.context.device().name())?;
            meter.start();
            for _ in 0..count {
                destroyed(device.open()?.close())?;
            }
            meter.stop();
            meter.round_over();
        }
        Ok(count)
    }

    fn modify_to_rts(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let cq = setup.queue(DEPTH, None)?;
        for _ in 0..meter.rounds() {
            let mut qp = setup.queue_pair(&cq, &cq, DEPTH)?;
            let own = qp.qp_num();
            meter.start();
            setup.connect(&mut qp, own)?;
            meter.stop();
            meter.round_over();
        }
        Ok(1)
    }

    fn post_receive(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let cq = setup.queue(DEPTH, None)?;
        let count = meter.times(DEPTH);
        for _ in 0..meter.rounds() {
            let mut qp = setup.connected(&cq, &cq)?;
            let mut requests = setup.requests();
            meter.start();
            requests.post_receives(&mut qp, count)?;
            meter.stop();
            meter.round_over();
        }
        Ok(count)
    }

    fn post_send(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let mut cq = setup.queue(2 * DEPTH, None)?;
        let mut qp = setup.connected(&cq, &cq)?;
        let mut requests = setup.requests();
        for round in 0..meter.times(DEPTH) {
            requests.post_receives(&mut qp, 1)?;
            meter.start();
            requests.post_send(&mut qp, round.into())?;
            meter.stop();
            meter.round_over();
            await_completions(&mut cq, 2)?;
            let_it_sleep();
        }
        Ok(1)
    }

    fn batch_list(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let mut cq = setup.queue(2 * DEPTH, None)?;
        let mut qp = setup.connected(&cq, &cq)?;
        let requests: Vec<_> =
            (0..BATCH).map(|wr_id| SendRequest::send(wr_id.into(), &setup.source).signaled()).collect();
        for _ in 0..meter.rounds() {
            setup.requests().post_receives(&mut qp, BATCH)?;
            meter.start();
            qp.post_send_list(&requests)?;
            meter.stop();
            meter.round_over();
            await_completions(&mut cq, 2 * BATCH)?;
            let_it_sleep();
        }
        Ok(BATCH)
    }

    fn batch_builder(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let mut cq = setup.queue(2 * DEPTH, None)?;
        let mut qp = setup.connected(&cq, &cq)?;
        for _ in 0..meter.rounds() {
            setup.requests().post_receives(&mut qp, BATCH)?;
            meter.start();
            let mut batch = qp.post_send();
            for wr_id in 0..BATCH.into() {
                batch = batch.push(&SendRequest::send(wr_id, &setup.source).signaled());
            }
            batch.submit()?;
            meter.stop();
            meter.round_over();
            await_completions(&mut cq, 2 * BATCH)?;
            let_it_sleep();
        }
        Ok(BATCH)
    }

    /// Measures how the completions of so many sends are taken; `take` gives the sum of so many `wr_id`s.
    #[inline(always)]
    fn take_full<const AT_ONCE: u32>(
        setup: &Setup,
        meter: &mut Meter,
        mut take: impl FnMut(&mut CompletionQueue) -> Result<u64>,
    ) -> Result<u32> {
        let (mut cq, mut recv_cq) = (setup.queue(DEPTH, None)?, setup.queue(DEPTH, None)?);
        let mut qp = setup.connected(&cq, &recv_cq)?;
        let count = meter.times(DEPTH);
        for _ in 0..meter.rounds() {
            setup.fill(&mut qp, &mut recv_cq, count)?;
            let mut sum = 0;
            meter.start();
            for _ in 0..count / AT_ONCE {
                sum += take(&mut cq)?;
            }
            meter.stop();
            meter.round_over();
            ensure!(sum == u64::from(count) * u64::from(count - 1) / 2, "the wr_ids are not those posted");
        }
        Ok(count)
    }

    fn poll_full<const AT_ONCE: u32>(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let mut room = [WorkCompletion::default(); 16];
        take_full::<AT_ONCE>(setup, meter, |cq| {
            let (mut sum, completions) = (0, cq.poll(&mut room[..AT_ONCE as usize]));
            ensure!(completions.len() == AT_ONCE as usize);
            for completion in completions {
                completion.success()?;
                sum += completion.wr_id();
            }
            Ok(sum)
        })
    }

    fn iterate_full<const AT_ONCE: u32>(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        take_full::<AT_ONCE>(setup, meter, |cq| {
            let (mut sum, mut completions) = (0, cq.completions());
            for _ in 0..AT_ONCE {
                let completion = completions.next().context("a completion is missing")?;
                completion.success()?;
                sum += completion.wr_id();
            }
            Ok(sum)
        })
    }

    fn arm_event_ack(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let channel = setup.context.create_completion_channel()?;
        let mut cq = setup.queue(2 * DEPTH, Some(&channel))?;
        let mut qp = setup.connected(&cq, &cq)?;
        let mut requests = setup.requests();
        for round in 0..meter.rounds() {
            requests.post_receives(&mut qp, 1)?;
            meter.start();
            cq.arm(false)?;
            meter.stop();
            requests.post_send(&mut qp, round.into())?;
            let mut readable = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
            ensure!(poll(&mut readable, PollTimeout::try_from(PATIENCE)?)? == 1, "no event");
            meter.start();
            drop(channel.wait(None)?);
            meter.stop();
            meter.round_over();
            await_completions(&mut cq, 2)?;
        }
        Ok(1)
    }

    struct End<'a> {
        recv_cq: CompletionQueue,
        send_cq: CompletionQueue,
        qp: QueuePair,
        requests: Requests<'a>,
    }

    impl<'a> End<'a> {
        fn new(setup: &'a Setup) -> Result<Self> {
            let channel = setup.context.create_completion_channel()?;
            let recv_cq = setup.queue(DEPTH, Some(&channel))?;
            let send_cq = setup.queue(DEPTH, None)?;
            let qp = setup.queue_pair(&send_cq, &recv_cq, DEPTH)?;
            Ok(Self { recv_cq, send_cq, qp, requests: setup.requests() })
        }

        /// Sends a message on its way, and gives back the room of those sent before.
        fn send_on(&mut self, room: &mut [WorkCompletion], round: u32) -> Result<()> {
            for completion in self.send_cq.poll(room) {
                completion.success()?;
            }
            self.requests.post_send(&mut self.qp, round.into())
        }

        /// Waits for a message and makes room for the next one.
        fn receive(&mut self, room: &mut [WorkCompletion]) -> Result<()> {
            next_completion(&mut self.recv_cq, room)?;
            self.requests.post_receives(&mut self.qp, 1)
        }
    }

    fn next_completion(cq: &mut CompletionQueue, room: &mut [WorkCompletion]) -> Result<()> {
        cq.wait(&mut room[..1], None)?.first().context("a completion is missing")?.success()?;
        Ok(())
    }

    fn ping_pong(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let (mut a, mut b) = (End::new(setup)?, End::new(setup)?);
        let (a_number, b_number) = (a.qp.qp_num(), b.qp.qp_num());
        setup.connect(&mut a.qp, b_number)?;
        a.requests.post_receives(&mut a.qp, 1)?;
        setup.connect(&mut b.qp, a_number)?;
        b.requests.post_receives(&mut b.qp, 1)?;
        let count = meter.times(200);
        let mut room = [WorkCompletion::default(); 4];
        for _ in 0..meter.rounds() {
            meter.start();
            for round in 0..count {
                a.send_on(&mut room, round)?;
                b.receive(&mut room)?;
                b.send_on(&mut room, round)?;
                a.receive(&mut room)?;
            }
            meter.stop();
            meter.round_over();
        }
        Ok(count)
    }

    fn attach_counter(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let cq = setup.queue(DEPTH, None)?;
        let counter = setup.context.create_completion_counter(CounterType::WorkRequests)?;
        for _ in 0..meter.rounds() {
            let capabilities =
                QueuePairCapabilities { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..Default::default() };
            let init =
                QueuePairInit { capabilities, signal_all: true, ..QueuePairInit::unreliable_datagram(&cq) };
            let mut qp = setup.domain.create_queue_pair(&init)?;
            meter.start();
            qp.attach_completion_counter(&counter, CounterOperations::SEND)?;
            meter.stop();
            meter.round_over();
        }
        Ok(1)
    }

    fn read_counter(setup: &Setup, meter: &mut Meter) -> Result<u32> {
        let counter = setup.context.create_completion_counter(CounterType::WorkRequests)?;
        counter.set(COUNTED)?;
        let mut sum = 0;
        let count = meter.repeat(100, || {
            sum += counter.read()?;
            Ok(())
        })?;
        ensure!(sum == COUNTED * u64::from(meter.rounds() * count), "the counter has another value");
        Ok(count)
    }

    fn first_completion(device: &str) -> Result<()> {
        let setup = Setup::new(device)?;
        let channel = setup.context.create_completion_channel()?;
        let mut cq = setup.queue(DEPTH, Some(&channel))?;
        let mut qp = setup.connected(&cq, &cq)?;
        let mut requests = setup.requests();
        requests.post_receives(&mut qp, 1)?;
        requests.post_send(&mut qp, 0)?;
        next_completion(&mut cq, &mut [WorkCompletion::default()])?;
        println!("{}", now());
        Ok(())
    }

    /// In KiB.
    fn resident() -> Result<u64> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no such line")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    fn many_queue_pairs(device: &str) -> Result<()> {
        let setup = Setup::new(device)?;
        let cq = setup.queue(DEPTH, None)?;
        let before = resident()?;
        let pairs = (0..MANY).map(|_| setup.queue_pair(&cq, &cq, 16)).collect::<Result<Vec<_>>>()?;
        println!("{} {}", resident()?, resident()? - before);
        drop(pairs);
        Ok(())
    }
}
