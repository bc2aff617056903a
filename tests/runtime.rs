//! Completions and events on tokio.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use nix::errno::Errno;
use tokio::time::{sleep, timeout};
use uverbs::tokio::{CompletionStream, EventStream};
use uverbs::{AsyncEventElement, AsyncEventType, ErrorKind, ReceiveRequest, SendRequest, WorkCompletion};

use crate::common::{DEADLINE, End, MOMENT, Pair, Setup, open, refused, succeeded};
use crate::soft::SoftDevice;

crate::cases! {
    Shared vb_01_a_task_misses_no_completion;
    Shared vb_01_what_came_before_is_there_at_once;
    Shared vb_01_a_wait_that_is_given_up_loses_nothing;
    Shared a_stream_gives_completions_one_by_one;
    Shared tasks_wait_for_queues_of_their_own;
    Shared a_stream_needs_a_channel_of_its_own;
    Shared a_channel_given_to_others_ends_the_wait;
    Shared a_busy_queue_leaves_others_their_turn;
    Unplugging a_task_hears_that_the_device_is_gone;
    Unplugging events_of_ports_and_the_end_of_a_device;
}

fn run<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { timeout(DEADLINE, task).await.expect("the task ends in time") };
    runtime.block_on(limited)
}

fn events() -> Pair {
    Setup { events: true, ..Setup::default() }.pair()
}

/// The next item of a stream.
async fn next<S: Stream + Unpin>(stream: &mut S) -> S::Item {
    poll_fn(|task| Pin::new(&mut *stream).poll_next(task)).await.expect("the stream goes on")
}

/// Takes one completion after the other, which have to be these.
async fn take(stream: &mut CompletionStream, wr_ids: impl IntoIterator<Item = u64>) {
    for wr_id in wr_ids {
        let mut room = [WorkCompletion::default()];
        assert_eq!(succeeded(stream.wait(&mut room).await.unwrap()), [wr_id]);
    }
}

fn vb_01_a_task_misses_no_completion() {
    run(async {
        let Pair { mut a, b } = events();
        let End { mut qp, cq, channel: _channel, memory: _memory } = b;
        let mut stream = CompletionStream::new(cq).unwrap();
        // One comes while the task sleeps, while it is about to, or before.
        for wr_id in 0..300_u64 {
            qp.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
            let send = async {
                if wr_id % 3 > 0 {
                    sleep(Duration::from_micros(wr_id % 7 * 50)).await;
                }
                a.send_nothing(wr_id).unwrap();
            };
            tokio::join!(send, take(&mut stream, [wr_id]));
        }
    });
}

fn vb_01_what_came_before_is_there_at_once() {
    run(async {
        let Pair { mut a, mut b } = events();
        b.receive_nothing(0..8);
        (0..8).for_each(|wr_id| a.send_nothing(wr_id).unwrap());
        let mut last = [WorkCompletion::default(); 8];
        let End { qp: _qp, cq, .. } = b;
        let mut stream = CompletionStream::new(cq).unwrap();
        // A batch that is smaller than what is there is followed by the rest.
        take(&mut stream, 0..5).await;
        sleep(MOMENT).await;
        assert_eq!(succeeded(stream.wait(&mut last).await.unwrap()), [5, 6, 7]);
        assert!(stream.wait(&mut []).await.unwrap().is_empty());
        assert!(timeout(MOMENT, stream.wait(&mut last)).await.is_err());
    });
}

fn vb_01_a_wait_that_is_given_up_loses_nothing() {
    run(async {
        let Pair { mut a, b } = events();
        let End { mut qp, cq, .. } = b;
        let mut stream = CompletionStream::new(cq).unwrap();
        for wr_id in 0..20 {
            let mut room = [WorkCompletion::default(); 2];
            assert!(timeout(Duration::from_millis(2), stream.wait(&mut room)).await.is_err());
            qp.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
            a.send_nothing(wr_id).unwrap();
            take(&mut stream, [wr_id]).await;
        }
        // The CQ comes back, and can be waited for without a runtime.
        let mut cq = stream.into_inner();
        qp.post_receive(&[ReceiveRequest::new(77, &[])]).unwrap();
        a.send_nothing(77).unwrap();
        let mut room = [WorkCompletion::default()];
        assert_eq!(succeeded(cq.wait(&mut room, Some(DEADLINE)).unwrap()), [77]);
    });
}

fn a_stream_gives_completions_one_by_one() {
    run(async {
        let Pair { mut a, mut b } = events();
        b.receive_nothing(0..10);
        let End { qp: _qp, cq, .. } = b;
        let mut stream = CompletionStream::new(cq).unwrap();
        for wr_id in 0..10 {
            a.send_nothing(wr_id).unwrap();
        }
        for wr_id in 0..10 {
            assert_eq!(succeeded(&[next(&mut stream).await.unwrap()]), [wr_id]);
        }
    });
}

fn tasks_wait_for_queues_of_their_own() {
    const COUNT: u64 = 200;
    run(async {
        let turn = || async {
            let Pair { a, b } = events();
            let (mut sender, mut receiver) = (a.qp, b.qp);
            let (mut sent, mut arrived) =
                (CompletionStream::new(a.cq).unwrap(), CompletionStream::new(b.cq).unwrap());
            for wr_id in 0..COUNT {
                receiver.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
                sender.post_send_list(&[SendRequest::send(wr_id, &[]).signaled()]).unwrap();
                tokio::join!(take(&mut sent, [wr_id]), take(&mut arrived, [wr_id]));
            }
        };
        tokio::join!(turn(), turn(), turn());
    });
}

fn a_stream_needs_a_channel_of_its_own() {
    run(async {
        let context = open();
        let without = context.create_completion_queue(4, None, 0).unwrap();
        let refused_queue = CompletionStream::new(without).unwrap_err();
        // It comes back.
        assert!(refused_queue.into_inner().poll(&mut [WorkCompletion::default()]).is_empty());
        let without = context.create_completion_queue(4, None, 0).unwrap();
        refused(CompletionStream::new(without), Errno::EINVAL, &["no completion channel"]);
        let channel = context.create_completion_channel().unwrap();
        let [one, other] = [(); 2].map(|()| context.create_completion_queue(4, Some(&channel), 0).unwrap());
        refused(CompletionStream::new(one), Errno::EINVAL, &["2 CQs share the channel"]);
        CompletionStream::new(other).unwrap();
    });
}

fn a_channel_given_to_others_ends_the_wait() {
    run(async {
        let context = open();
        let channel = context.create_completion_channel().unwrap();
        let cq = context.create_completion_queue(4, Some(&channel), 0).unwrap();
        let mut stream = CompletionStream::new(cq).unwrap();
        let mut room = [WorkCompletion::default()];
        assert!(timeout(MOMENT, stream.wait(&mut room)).await.is_err());
        let other = context.create_completion_queue(4, Some(&channel), 0).unwrap();
        refused(stream.wait(&mut room).await, Errno::EINVAL, &["2 CQs share the channel"]);
        drop(other);
        assert!(timeout(MOMENT, stream.wait(&mut room)).await.is_err());
    });
}

fn a_busy_queue_leaves_others_their_turn() {
    run(async {
        let Pair { mut a, b } = events();
        let End { mut qp, cq, .. } = b;
        let mut stream = CompletionStream::new(cq).unwrap();
        let others = Cell::new(0_u32);
        // Completions are always there before they are waited for.
        let busy = async {
            for number in (0..).step_by(8) {
                if others.get() == 10 {
                    break;
                }
                assert!(number < 4000, "nobody else has had a turn");
                for wr_id in number..number + 8 {
                    qp.post_receive(&[ReceiveRequest::new(wr_id, &[])]).unwrap();
                    a.send_nothing(wr_id).unwrap();
                }
                std::thread::sleep(Duration::from_millis(2));
                take(&mut stream, number..number + 8).await;
            }
        };
        let other = async {
            while others.get() < 10 {
                others.set(others.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(busy, other);
    });
}

fn a_task_hears_that_the_device_is_gone() {
    let soft = SoftDevice::new();
    run(async {
        let context = soft.device().open().unwrap();
        let channel = context.create_completion_channel().unwrap();
        let cq = context.create_completion_queue(4, Some(&channel), 0).unwrap();
        let mut stream = CompletionStream::new(cq).unwrap();
        let mut room = [WorkCompletion::default()];
        let unplug = async {
            sleep(MOMENT).await;
            soft.delete();
        };
        let (waited, ()) = tokio::join!(stream.wait(&mut room), unplug);
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::DeviceGone);
    });
    soft.create();
}

fn events_of_ports_and_the_end_of_a_device() {
    let soft = SoftDevice::new();
    run(async {
        let context = soft.device().open().unwrap();
        let mut events = EventStream::new(context.async_events()).unwrap();
        assert!(timeout(MOMENT, events.next()).await.is_err());
        let port = AsyncEventElement::Port(1);
        soft.set_link(false);
        loop {
            let event = next(&mut events).await.unwrap();
            assert_eq!(event.element(), port);
            if event.kind() == AsyncEventType::PortError {
                break;
            }
        }
        soft.delete();
        loop {
            let event = events.next().await.unwrap().expect("the last event is of the device");
            if event.kind() == AsyncEventType::DeviceFatal {
                break;
            }
            assert_eq!(event.element(), port);
        }
        assert!(events.next().await.unwrap().is_none());
        assert!(poll_fn(|task| Pin::new(&mut events).poll_next(task)).await.is_none());
    });
    soft.create();
}
