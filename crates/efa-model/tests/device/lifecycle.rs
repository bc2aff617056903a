//! Reset, events of the device, and devices on a wire with threads.

use std::time::{Duration, Instant};

use uverbs_efa_model::admin::abi::{CommandFlags, event_group};
use uverbs_efa_model::admin::{Opcode, QpKind, QpState, Status};
use uverbs_efa_model::io;
use uverbs_efa_model::registers::Register;
use uverbs_efa_model::{GuestMemory, Wire};

use crate::rig::{Node, Pair, Send, Work, config, device};

const READY: u32 = 1;

#[test]
fn registers_are_read_by_way_of_memory() {
    let mut node = Node::new(config(0));
    assert_eq!(node.read(Register::Version.offset() as u16), 3);
    assert_eq!(node.read(Register::ControllerVersion.offset() as u16), 1);
    assert_eq!(node.read(Register::DeviceStatus.offset() as u16) & READY, READY);
    let capabilities = node.read(Register::Capabilities.offset() as u16);
    assert_eq!((capabilities >> 1 & 0x1f, capabilities >> 8 & 0xff, capabilities >> 16 & 0xf), (10, 48, 10));
    assert_eq!(node.read(0x44), u32::MAX, "there is no such register");
    assert_eq!(node.device.read_register(Register::Version.offset()), 3);
    assert_eq!(node.device.read_register(0x44), 0);
}

#[test]
fn keep_alive_comes_regularly() {
    let interval = Duration::from_secs(1);
    let mut node = Node::new(config(0));
    node.wait(interval);
    assert!(node.notifications().is_empty(), "not wanted yet");
    assert_eq!(node.want_events(event_group::ALL), Status::Success);
    let interrupts = node.device.interrupts().0[0];
    for _ in 0..10 {
        node.wait(interval / 2);
        assert!(node.notifications().is_empty());
        assert_eq!(node.device.poll_timeout(), Some(node.now + interval / 2));
        node.wait(interval / 2);
        assert_eq!(node.notifications(), [event_group::KEEP_ALIVE]);
    }
    assert_eq!(node.device.interrupts().0[0], interrupts + 10);
    // A driver that takes none gets no more than the queue holds.
    (0..10).for_each(|_| node.wait(interval));
    assert_eq!(node.notifications(), [event_group::KEEP_ALIVE; 4]);
}

#[test]
fn keep_alive_can_be_off() {
    let mut config = config(0);
    config.keep_alive = None;
    let mut node = Node::new(config);
    assert_eq!(node.want_events(event_group::ALL), Status::Success);
    assert_eq!(node.device.poll_timeout(), None);
}

#[test]
fn a_reset_in_the_middle_drops_everything() {
    let mut pair = Pair::new(config(0), QpKind::Srd);
    // Waits for a receiver.
    pair.post(&pair.request(1, Work::Inline(b"hello")));
    assert!(pair.node.device.poll_timeout().is_some());
    let Pair { mut node, qp, pd, .. } = pair;
    let mut stale = qp[0];

    // Reads are answered in the middle of a reset, doorbells are not.
    node.write(Register::DeviceControl, 1);
    node.ring_send(&stale);
    node.write(Register::AdminQueueDoorbell, 1);
    assert_eq!(node.device.poll_timeout(), None);

    node.probe();
    assert_eq!(node.number(Opcode::DeallocatePd, pd), Status::IllegalParameter);
    assert_eq!(node.modify(&stale, QpState::Init), Status::IllegalParameter);
    let request = Send::new(1, 0, 0, Work::Inline(&[]));
    node.send(&mut stale, &request);
    node.wait(Duration::from_secs(10));
    // All that a new driver makes is as if it were the first.
    assert_eq!((node.pd(), node.uar()), (0, 0));
}

#[test]
fn admin_queues_restart() {
    const IN_PROGRESS: u32 = 2;
    const FINISHED: u32 = 4;
    let mut node = Node::new(config(0));
    assert_eq!(node.pd(), 0);
    node.write(Register::DeviceControl, 2);
    assert_eq!(node.device.read_register(Register::DeviceStatus.offset()) & IN_PROGRESS, IN_PROGRESS);
    node.write(Register::DeviceControl, 0);
    assert_eq!(node.device.read_register(Register::DeviceStatus.offset()) & FINISHED, FINISHED);
    // The rings are empty, the objects are still there.
    node.write(Register::AdminQueueDoorbell, 0);
    assert_eq!(node.device.interrupts().0[0], 1);
}

#[test]
fn doorbells_before_the_queues_do_nothing() {
    let mut device = device(config(0));
    let now = Instant::now();
    for register in Register::ALL {
        for value in [0, 1, u32::MAX] {
            device.write_register(now, register.offset(), value);
        }
        device.reset();
    }
    for offset in (0..device.doorbells().bar_size()).step_by(4) {
        device.write_register(now, offset, 0xffff_ffff);
    }
    device.handle_timeout(now + Duration::from_secs(100));
    assert!(device.poll_transmit().is_none());
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Often a small number, sometimes one with all bits, sometimes any.
    fn odd(&mut self) -> u64 {
        match self.next() % 8 {
            0 => u64::MAX,
            1 => self.next(),
            2 => 1 << (self.next() % 64),
            3 => self.next() % 512 * 8,
            _ => self.next() % 5,
        }
    }
}

#[test]
fn whatever_a_driver_does_the_device_goes_on() {
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    for round in 0..30 {
        let mut pair = Pair::new(config(0), if round % 2 == 0 { QpKind::Srd } else { QpKind::Ud });
        for _ in 0..1500 {
            let node = &mut pair.node;
            match numbers.next() % 4 {
                0 => {
                    let mut payload = [0; 60];
                    for chunk in payload.chunks_mut(4) {
                        chunk.copy_from_slice(&(numbers.odd() as u32).to_le_bytes());
                    }
                    let flags = CommandFlags::from_bits_retain(numbers.next() as u8 & 6);
                    node.write_command(1 + (numbers.next() % 29) as u8, flags, &payload, true);
                    node.ring_admin();
                }
                1 => {
                    let pages = node.device.doorbells().bar_size() / 4096;
                    let offset = numbers.next() % pages * 4096 + numbers.next() % 3 * 4;
                    // Not the registers: they would end the round too soon.
                    node.device.write_register(node.now, offset.max(4096), numbers.odd() as u32);
                }
                2 => {
                    let mut request = [0; 128];
                    for chunk in request.chunks_mut(4) {
                        chunk.copy_from_slice(&(numbers.odd() as u32).to_le_bytes());
                    }
                    request[2] |= 0x80;
                    request[3] |= 0xc;
                    let address = numbers.next() % 64 * 128;
                    node.device.llq_mut().write(address, &request).unwrap();
                    node.device.memory_mut().write(numbers.next() % 1024 * 4096, &request).unwrap();
                }
                _ => node.wait(Duration::from_millis(numbers.next() % 600)),
            }
        }
        for register in Register::ALL {
            pair.node.write(register, numbers.odd() as u32);
        }
        pair.node.probe();
        assert_eq!(pair.node.pd(), 0, "a reset makes all good");
    }
}

#[test]
fn a_wire_carries_packets_and_time() {
    let mut nodes = [Node::new(config(0)), Node::new(config(1))];
    let gids = nodes.each_ref().map(|node| node.device.config().gid());
    let mut qps = nodes.each_mut().map(|node| {
        let (uar, pd) = (node.uar(), node.pd());
        let cq = node.cq(Node::create_cq(uar));
        let qp = node.qp(Node::create_qp(QpKind::Srd, pd, uar, &cq));
        node.ready(&qp);
        (pd, cq, qp)
    });
    let ah = nodes[0].ah(qps[0].0, gids[1]);
    let peer = qps[1].2.number;
    // One whose receiver is not ready, and one whose receiver does not exist.
    nodes[0].write_send(&mut qps[0].2, &Send::new(1, ah, peer, Work::Inline(&[])));
    nodes[0].write_send(&mut qps[0].2, &Send::new(2, ah, peer + 1, Work::Inline(&[])));
    let (doorbell, value) = qps[0].2.send_doorbell();
    let now = nodes[0].now;
    let wire = Wire::new(nodes.map(|node| node.device));
    wire.with(0, |device| device.write_register(now, doorbell, value));
    let first_completion = || {
        wire.with(0, |device| {
            let mut bytes = [0; 4];
            device.memory().read(qps[0].1.base, &mut bytes).unwrap();
            bytes
        })
    };
    assert_eq!(first_completion()[..3], [2, 0, io::Status::RemoteBadDestQpn as u8]);
    let again = wire.poll_timeout().unwrap();
    assert!(again > now && again < now + Duration::from_secs(1));
    let sent = |wire: &Wire<_, _>| wire.with(0, |device| device.poll_timeout());
    wire.handle_timeouts(again);
    assert!(sent(&wire) > Some(again), "the first message has been sent again");
}
