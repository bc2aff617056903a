//! Two connected queue pairs with memory, as two programs on two hosts would have one each.

use uverbs::{
    AccessFlags, AddressVector, CompletionCounter, Context, CounterOperations, CounterType, Device,
    MemoryRegion, ModifyQueuePair, Mtu, ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairInit,
    RemoteMemory, Result,
};

/// One end: a queue pair, memory that the peer may write, and counters for what it writes and for what the peer does.
pub(crate) struct End {
    /// Connected.
    pub(crate) qp: QueuePair,
    /// A peer may write it.
    pub(crate) memory: MemoryRegion,
    /// Own RDMA writes that completed.
    pub(crate) written: CompletionCounter,
    /// RDMA writes of the peer that arrived.
    pub(crate) arrived: CompletionCounter,
}

/// Requests that the send queue holds.
pub(crate) const DEPTH: u32 = 64;

impl End {
    fn new(context: &Context, domain: &ProtectionDomain, bytes: usize) -> Result<Self> {
        // Nothing will ever complete here: no work is signalled, and RDMA writes use up no receives.
        let cq = context.create_completion_queue(1, None, 0)?;
        let capabilities =
            QueuePairCapabilities { max_send_wr: DEPTH, max_inline_data: 8, ..Default::default() };
        let init = QueuePairInit { capabilities, ..QueuePairInit::reliable_connection(&cq) };
        let mut qp = domain.create_queue_pair(&init)?;
        let memory = domain.allocate(bytes, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        let mut counter = |operation| -> Result<CompletionCounter> {
            let counter = context.create_completion_counter(CounterType::WorkRequests)?;
            qp.attach_completion_counter(&counter, operation)?;
            Ok(counter)
        };
        let written = counter(CounterOperations::RDMA_WRITE)?;
        let arrived = counter(CounterOperations::REMOTE_RDMA_WRITE)?;
        Ok(Self { qp, memory, written, arrived })
    }

    /// What the peer has to know to write here.
    pub(crate) fn remote(&self, offset: u64) -> RemoteMemory {
        RemoteMemory { address: self.memory.address() + offset, rkey: self.memory.rkey() }
    }
}

/// Two ends on the device named by the first argument, `rxe0` if there is none.
pub(crate) fn pair(bytes: usize) -> Result<(End, End)> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "rxe0".to_owned());
    let context = Device::find(&name)?.open()?;
    let domain = context.alloc_protection_domain()?;
    let (mut one, mut other) = (End::new(&context, &domain, bytes)?, End::new(&context, &domain, bytes)?);
    let gid = context.routable_gid(1, None)?;
    let numbers = [one.qp.qp_num(), other.qp.qp_num()];
    for (end, peer) in [(&mut one, numbers[1]), (&mut other, numbers[0])] {
        let address = AddressVector::global(1, gid.gid, gid.index as u8);
        end.qp.modify(&ModifyQueuePair::init(1, AccessFlags::REMOTE_WRITE))?;
        end.qp.modify(&ModifyQueuePair::ready_to_receive(address, peer, 0, Mtu::Bytes1024))?;
        end.qp.modify(&ModifyQueuePair::ready_to_send(0))?;
    }
    Ok((one, other))
}

/// Reads a counter until it says at least `value`, for ten seconds at most.
pub(crate) fn wait_for(counter: &CompletionCounter, value: u64) -> Result<u64> {
    let start = std::time::Instant::now();
    loop {
        let seen = counter.read()?;
        if seen >= value || start.elapsed().as_secs() >= 10 {
            assert!(seen >= value, "{seen} of {value} after ten seconds");
            return Ok(seen);
        }
        std::thread::yield_now();
    }
}
