//! How to test RDMA code without RDMA: a small key-value protocol, and its tests on devices inside the process.
//!
//! A server keeps slots in memory that its client may read. A value is put by a message, which the server answers, and got by an RDMA read,
//! which the server does not notice. `docs/testing-your-rdma-code.md` tells about the tests.

use std::thread;
use std::time::Duration;

use uverbs::soft::{Device, Faults, Wire};
use uverbs::{
    AccessFlags, AddressVector, CompletionQueue, CompletionStatus, Context, GidEntry, MemoryRegion,
    ModifyQueuePair, Mtu, QueuePair, QueuePairInit, ReceiveRequest, RemoteMemory, SendRequest,
    WorkCompletion,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PORT: u8 = 1;
const SLOTS: usize = 16;
/// A key and a value, each behind a byte with its length.
const SLOT: usize = 64;
const HALF: usize = SLOT / 2;
/// Where a message arrives, and where a slot goes that was read.
const MESSAGE: usize = SLOTS * SLOT;
const READ: usize = MESSAGE + SLOT;

/// How long to wait for the other end.
const PATIENCE: Duration = Duration::from_secs(5);

/// One end: a queue pair and what it needs.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    gid: GidEntry,
}

/// What the other end has to know of it. A real program tells it by other means.
#[derive(Clone, Copy)]
struct Address {
    gid: GidEntry,
    qp_num: u32,
    slots: RemoteMemory,
}

impl End {
    fn new(context: &Context) -> Result<Self> {
        let domain = context.alloc_protection_domain()?;
        let channel = context.create_completion_channel()?;
        let cq = context.create_completion_queue(16, Some(&channel), 0)?;
        let qp = domain.create_queue_pair(&QueuePairInit::reliable_connection(&cq))?;
        let memory = domain.allocate(READ + SLOT, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
        Ok(Self { qp, cq, memory, gid: context.routable_gid(PORT, None)? })
    }

    fn address(&self) -> Address {
        let slots = RemoteMemory { address: self.memory.address(), rkey: self.memory.rkey() };
        Address { gid: self.gid, qp_num: self.qp.qp_num(), slots }
    }

    fn connect(&mut self, peer: &Address) -> Result<()> {
        let address = AddressVector::global(PORT, peer.gid.gid, self.gid.index as u8);
        self.qp.modify(&ModifyQueuePair::init(PORT, AccessFlags::REMOTE_READ))?;
        self.qp.modify(&ModifyQueuePair::ready_to_receive(address, peer.qp_num, 0, Mtu::Bytes1024))?;
        self.expect_message()?;
        // What is lost is sent again after 131 µs, seven times.
        let quick =
            ModifyQueuePair { timeout: Some(5), retry_count: Some(6), ..ModifyQueuePair::ready_to_send(0) };
        Ok(self.qp.modify(&quick)?)
    }

    fn expect_message(&mut self) -> Result<()> {
        let place = [self.memory.sge(MESSAGE..MESSAGE + SLOT)];
        Ok(self.qp.post_receive(&[ReceiveRequest::new(0, &place)])?)
    }

    /// Waits for that many completions, which have to be successes.
    fn complete(&mut self, mut count: usize) -> Result<()> {
        while count > 0 {
            let mut room = [WorkCompletion::default(); 4];
            let completions = self.cq.wait(&mut room[..count.min(4)], Some(PATIENCE))?;
            if completions.is_empty() {
                return Err("the other end does not answer".into());
            }
            for completion in completions {
                completion.success()?;
                count -= 1;
            }
        }
        Ok(())
    }

    fn slot(&self, place: usize) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        self.memory.read(place, &mut bytes);
        bytes
    }
}

/// Where a key belongs.
fn place_of(key: &[u8]) -> usize {
    key.iter().fold(7, |hash: usize, byte| hash.wrapping_mul(31) + usize::from(*byte)) % SLOTS * SLOT
}

fn slot_of(key: &[u8], value: &[u8]) -> Result<[u8; SLOT]> {
    let mut slot = [0; SLOT];
    for (half, bytes) in slot.chunks_mut(HALF).zip([key, value]) {
        if bytes.len() >= HALF {
            return Err(format!("{} bytes are more than {}", bytes.len(), HALF - 1).into());
        }
        half[0] = bytes.len() as u8;
        half[1..=bytes.len()].copy_from_slice(bytes);
    }
    Ok(slot)
}

fn half(slot: &[u8; SLOT], number: usize) -> &[u8] {
    let half = &slot[number * HALF..(number + 1) * HALF];
    half.get(1..=usize::from(half[0])).unwrap_or_default()
}

struct Server(End);

impl Server {
    /// Serves so many puts.
    fn serve(&mut self, puts: usize) -> Result<()> {
        for _ in 0..puts {
            self.0.complete(1)?;
            let slot = self.0.slot(MESSAGE);
            self.0.memory.write(place_of(half(&slot, 0)), &slot);
            self.0.expect_message()?;
            self.0.qp.post_send().push(&SendRequest::send_inline(1, &[]).signaled()).submit()?;
            self.0.complete(1)?;
        }
        Ok(())
    }
}

struct Client {
    end: End,
    slots: RemoteMemory,
}

impl Client {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let slot = slot_of(key, value)?;
        self.end.memory.write(READ, &slot);
        let sges = [self.end.memory.sge(READ..READ + SLOT)];
        self.end.qp.post_send().push(&SendRequest::send(2, &sges).signaled()).submit()?;
        // That it has arrived, and the answer.
        self.end.complete(2)?;
        self.end.expect_message()
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let from = RemoteMemory { address: self.slots.address + place_of(key) as u64, ..self.slots };
        let sges = [self.end.memory.sge(READ..READ + SLOT)];
        self.end.qp.post_send().push(&SendRequest::rdma_read(3, &sges, from).signaled()).submit()?;
        self.end.complete(1)?;
        let slot = self.end.slot(READ);
        Ok((half(&slot, 0) == key).then(|| half(&slot, 1).to_vec()))
    }
}

/// A server and a client, each on a device of its own.
fn connected(server: &Device, client: &Device) -> Result<(Server, Client)> {
    let open = |device: &Device| uverbs::Device::from(device.clone()).open();
    let (mut server, mut end) = (End::new(&open(server)?)?, End::new(&open(client)?)?);
    let slots = server.address().slots;
    server.connect(&end.address())?;
    end.connect(&server.address())?;
    Ok((Server(server), Client { end, slots }))
}

fn two_devices() -> (Device, Device) {
    let wire = Wire::new();
    (Device::new(&wire, "server"), Device::new(&wire, "client"))
}

/// Puts and gets, which have to come to what they say.
fn exercise(mut server: Server, mut client: Client) -> Result<()> {
    const ROUNDS: usize = 50;
    let serving = thread::spawn(move || server.serve(ROUNDS).map(|()| server));
    for round in 0..ROUNDS {
        let (key, value) = (format!("key {}", round % 7), format!("value {round}"));
        client.put(key.as_bytes(), value.as_bytes())?;
        assert_eq!(client.get(key.as_bytes())?.as_deref(), Some(value.as_bytes()));
    }
    assert_eq!(client.get(b"no such key")?, None);
    // It stays until the client is done with its memory.
    let _server = serving.join().unwrap()?;
    Ok(())
}

#[test]
fn values_are_got_as_they_were_put() {
    let (server, client) = two_devices();
    let (server, client) = connected(&server, &client).unwrap();
    exercise(server, client).unwrap();
}

#[test]
fn what_is_too_long_is_refused() {
    assert!(slot_of(&[b'k'; 31], &[b'v'; 31]).is_ok());
    assert_eq!(slot_of(b"k", &[b'v'; 32]).unwrap_err().to_string(), "32 bytes are more than 31");
}

#[test]
fn a_lossy_wire_only_takes_longer() {
    for seed in 0..5 {
        let (server, client) = two_devices();
        let faults = Faults::new(seed).lose(100).lose_answers(100).not_ready(100);
        server.set_faults(faults.clone());
        client.set_faults(faults);
        let (server, client) = connected(&server, &client).unwrap();
        exercise(server, client).unwrap();
    }
}

#[test]
fn a_client_whose_server_is_gone_is_told() {
    let (server_device, client_device) = two_devices();
    let (_server, mut client) = connected(&server_device, &client_device).unwrap();
    server_device.remove();
    let error = client.put(b"key", b"value").unwrap_err();
    let error = error.downcast::<uverbs::CompletionError>().unwrap();
    assert_eq!(error.status, CompletionStatus::RETRY_EXC_ERR);
}

#[test]
fn every_call_that_fails_is_told_and_nothing_is_left() {
    const ENOMEM: i32 = 12;
    let attempt = |number| {
        let (server, client) = two_devices();
        client.set_faults(Faults::new(0).fail_call(number, ENOMEM));
        let result = connected(&server, &client).map(|pair| (pair, client.calls()));
        (
            client,
            result.map(|((server, client), calls)| {
                drop((server, client));
                calls
            }),
        )
    };
    let calls = attempt(u64::MAX).1.unwrap();
    let mut failures = 0;
    for number in 1..=calls {
        let (client, result) = attempt(number);
        if let Err(error) = result {
            assert_eq!(error.downcast::<uverbs::Error>().unwrap().errno(), ENOMEM);
            failures += 1;
        }
        assert!(
            client.resources().values().all(|count| *count == 0),
            "call {number}: {:?}",
            client.resources()
        );
    }
    assert!(failures > 10, "{failures} of {calls}");
}
