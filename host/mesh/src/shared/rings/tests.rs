use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const RING_BYTES: usize = 4096;

fn ends() -> (Rings, Rings) {
    let (memory, file) = Memory::create(layout(RING_BYTES)).unwrap();
    (Rings::new(memory, Side::Caller), Rings::new(Memory::open(&file, layout(RING_BYTES)).unwrap(), Side::Called))
}

fn content(at: u64) -> u8 {
    (at.wrapping_mul(0xD129_0B26_8B4C_F47D) >> 56) as u8
}

fn write(rings: &Rings, lens: &[usize], at: u64) -> usize {
    let total: usize = lens.iter().sum();
    let bytes: Vec<u8> = (at..at + total as u64).map(content).collect();
    let mut rest = &bytes[..];
    let parts: Vec<IoSlice<'_>> = lens.iter().map(|len| IoSlice::new(rest.split_off(..*len).unwrap())).collect();
    rings.write(&parts, || ()).unwrap()
}

fn read(rings: &Rings, lens: &[usize]) -> Vec<u8> {
    let mut bytes = vec![0; lens.iter().sum()];
    let mut rest = &mut bytes[..];
    let mut parts: Vec<IoSliceMut<'_>> =
        lens.iter().map(|len| IoSliceMut::new(rest.split_off_mut(..*len).unwrap())).collect();
    let len = rings.read(&mut parts, || ()).unwrap();
    bytes.truncate(len);
    bytes
}

proptest! {
    /// However writes and reads are cut, over the end of the ring, full and empty: what comes is what was written.
    #[test]
    fn what_comes_is_what_was_written(
        steps in prop::collection::vec((any::<bool>(), prop::collection::vec(0..3000usize, 1..4)), 1..60),
        start in prop_oneof![Just(0), Just(u64::MAX - 100), any::<u64>()],
    ) {
        let (one, other) = ends();
        // As if so many bytes had gone before.
        for rings in [&one, &other] {
            let (head, tail) = if std::ptr::eq(rings, &one) { (0, start) } else { (start, 0) };
            rings.head.store(head, Ordering::Relaxed);
            rings.tail.store(tail, Ordering::Relaxed);
        }
        word(&one.memory, 0, Word::Tail).store(start, Ordering::Relaxed);
        word(&one.memory, 0, Word::Head).store(start, Ordering::Relaxed);
        let (mut written, mut come) = (0, 0);
        for (writes, lens) in steps {
            let total: usize = lens.iter().sum();
            let under_way = (written - come) as usize;
            if writes {
                let len = write(&one, &lens, written);
                prop_assert_eq!(len, total.min(RING_BYTES - under_way));
                written += len as u64;
            } else {
                let bytes = read(&other, &lens);
                prop_assert_eq!(bytes.len(), total.min(under_way));
                prop_assert!(bytes.iter().zip(come..).all(|(byte, at)| *byte == content(at)));
                come += bytes.len() as u64;
            }
            prop_assert_eq!(other.bytes().unwrap(), (written - come) as usize);
            prop_assert_eq!(one.room().unwrap(), RING_BYTES - (written - come) as usize);
        }
    }
}

/// Sleeps until it is woken, or for long.
struct Bed(std::sync::Mutex<bool>, std::sync::Condvar);

impl Bed {
    fn wake(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn sleep(&self) {
        let (mut woken, end) =
            self.1.wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(20), |woken| !*woken).unwrap();
        assert!(!end.timed_out(), "nobody has woken it");
        *woken = false;
    }
}

#[test]
fn two_threads_that_sleep_pass_every_byte_on() {
    const TOTAL: u64 = 32 << 20;
    let (one, other) = ends();
    let beds = [(); 2].map(|()| Bed(std::sync::Mutex::new(false), std::sync::Condvar::new()));
    one.want(false, true);
    other.want(true, false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut at, mut step) = (0, 1);
            while at < TOTAL {
                step = (step * 31 + 7) % 5000;
                let bytes: Vec<u8> = (at..TOTAL.min(at + step)).map(content).collect();
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let len = one.write(&[IoSlice::new(rest)], || beds[1].wake()).unwrap();
                    rest = &rest[len..];
                    if len == 0 && !one.arm() {
                        beds[0].sleep();
                    }
                }
                at += bytes.len() as u64;
            }
        });
        let (mut at, mut room) = (0, vec![0; 3001]);
        while at < TOTAL {
            let len = other.read(&mut [IoSliceMut::new(&mut room)], || beds[0].wake()).unwrap();
            assert!(room[..len].iter().zip(at..).all(|(byte, at)| *byte == content(at)), "behind {at}");
            at += len as u64;
            if len == 0 && !other.arm() {
                beds[1].sleep();
            }
        }
    });
    assert!(!other.is_ready());
}

#[test]
fn positions_that_cannot_be_are_found_and_nothing_is_read_outside() {
    let values = [RING_BYTES as u64 + 1, u64::MAX, 1 << 63, u64::MAX - RING_BYTES as u64];
    for value in values {
        let (one, other) = ends();
        other.want(true, true);
        word(&one.memory, 0, Word::Tail).store(value, Ordering::Release);
        let error = other.read(&mut [IoSliceMut::new(&mut [0; 9000])], || ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{value}");
        assert!(other.is_ready(), "whoever waits finds out");
        let (one, other) = ends();
        word(&one.memory, 1, Word::Head).store(value.wrapping_neg(), Ordering::Release);
        let error = other.write(&[IoSlice::new(&[0; 9000])], || ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{value}");
    }
    // A tail that goes back after it was seen, and one that is possible and wrong: some bytes, all from the ring.
    let (one, other) = ends();
    assert_eq!(write(&one, &[100], 0), 100);
    assert_eq!(read(&other, &[60]).len(), 60);
    word(&one.memory, 0, Word::Tail).store(59, Ordering::Release);
    assert_eq!(other.bytes().unwrap_err().kind(), ErrorKind::InvalidData);
    word(&one.memory, 0, Word::Tail).store(60 + RING_BYTES as u64, Ordering::Release);
    assert_eq!(read(&other, &[9000]).len(), RING_BYTES);
}

#[test]
fn only_whoever_sleeps_is_woken_and_once() {
    let (one, other) = ends();
    let woken = |rings: &Rings| {
        let mut count = 0;
        rings.write(&[IoSlice::new(&[1])], || count += 1).unwrap();
        count
    };
    assert_eq!(woken(&one), 0, "nobody sleeps");
    other.want(true, false);
    assert!(other.arm(), "there is a byte");
    other.disarm();
    assert_eq!(read(&other, &[5]).len(), 1);
    assert!(!other.arm());
    assert_eq!((woken(&one), woken(&one)), (1, 0));
    // A writer, when half of the ring is free.
    assert_eq!(write(&one, &[RING_BYTES], 0), RING_BYTES - 2);
    one.want(false, true);
    assert!(!one.arm());
    let mut count = 0;
    let begun = Instant::now();
    let mut come = 0;
    while count == 0 && begun.elapsed() < Duration::from_secs(5) {
        come += other.read(&mut [IoSliceMut::new(&mut [0; 64])], || count += 1).unwrap();
    }
    assert_eq!((count, come), (1, RING_BYTES / 2));
    assert!(one.is_ready());
}
