//! Gathers of the program: functions that give every rank as many bytes of each.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::memory::User;

/// Gathers equally long pieces, step by step.
pub(crate) trait Gather: Send {
    /// Begins with the own piece. One at a time.
    fn start(&mut self, mine: Vec<u8>) -> Result<(), String>;

    /// The pieces of all ranks, in their order, once they are there.
    fn test(&mut self) -> Result<Option<Vec<u8>>, String>;

    /// Ends what is under way.
    fn abandon(&mut self);
}

/// A function that gathers before it returns.
pub(crate) struct Blocking {
    pub(crate) function: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int,
    pub(crate) user: User,
    pub(crate) ranks: usize,
    pub(crate) gathered: Option<Vec<u8>>,
}

fn returned(what: &str, code: c_int) -> String {
    format!("{what} returned {code}")
}

impl Gather for Blocking {
    fn start(&mut self, mine: Vec<u8>) -> Result<(), String> {
        let mut all = vec![0u8; mine.len() * self.ranks];
        // SAFETY: the function is the program's, `user` its own; the lengths are those that the type promises.
        let code = unsafe { (self.function)(self.user.0, mine.as_ptr().cast(), mine.len(), all.as_mut_ptr().cast()) };
        if code != 0 {
            return Err(returned("it", code));
        }
        self.gathered = Some(all);
        Ok(())
    }

    fn test(&mut self) -> Result<Option<Vec<u8>>, String> {
        Ok(self.gathered.take())
    }

    fn abandon(&mut self) {
        self.gathered = None;
    }
}

type Start = unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, usize, *mut *mut c_void) -> c_int;
type OnHandle = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// Functions that begin an Allgather, and say when it is over.
pub(crate) struct NonBlocking {
    pub(crate) start: Start,
    pub(crate) test: OnHandle,
    pub(crate) free: Option<OnHandle>,
    pub(crate) user: User,
    pub(crate) ranks: usize,
    pub(crate) under_way: Option<UnderWay>,
}

/// An Allgather that has begun: its memory stays where it is until its handle is freed.
pub(crate) struct UnderWay {
    _mine: Vec<u8>,
    all: Vec<u8>,
    handle: User,
}

impl NonBlocking {
    fn end(&mut self) -> Option<Vec<u8>> {
        let under_way = self.under_way.take()?;
        if let Some(free) = self.free {
            // SAFETY: the program's function, with its own pointer and the handle that it has given.
            let _ = unsafe { free(self.user.0, under_way.handle.0) };
        }
        Some(under_way.all)
    }
}

impl Gather for NonBlocking {
    fn start(&mut self, mine: Vec<u8>) -> Result<(), String> {
        let mut all = vec![0u8; mine.len() * self.ranks];
        let mut handle = std::ptr::null_mut();
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: the program's function; both buffers are as long as the type promises, and stay until `end`: moving a
        // vector does not move its bytes.
        let code = unsafe { (self.start)(self.user.0, from, to, mine.len(), &raw mut handle) };
        if code != 0 {
            return Err(returned("its start", code));
        }
        self.under_way = Some(UnderWay { _mine: mine, all, handle: User(handle) });
        Ok(())
    }

    fn test(&mut self) -> Result<Option<Vec<u8>>, String> {
        let Some(under_way) = &self.under_way else { return Ok(None) };
        // SAFETY: the program's function, with its own pointer and the handle that it has given.
        match unsafe { (self.test)(self.user.0, under_way.handle.0) } {
            0 => Ok(self.end()),
            1 => Ok(None),
            code => {
                self.end();
                Err(returned("its test", code))
            }
        }
    }

    fn abandon(&mut self) {
        self.end();
    }
}

type Set = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void, usize) -> c_int;

/// A key-value store: each rank sets a key of its own, and gets those of the others.
pub(crate) struct Store {
    pub(crate) set: Set,
    pub(crate) get: Get,
    pub(crate) user: User,
    pub(crate) prefix: String,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Gathers so far.
    pub(crate) number: u64,
    pub(crate) bytes: usize,
    pub(crate) all: Vec<u8>,
    /// Ranks whose piece is not there yet.
    pub(crate) missing: VecDeque<usize>,
}

impl Store {
    fn key(&self, rank: usize) -> CString {
        // The prefix was a C string.
        CString::new(format!("{}/{}/{rank}", self.prefix, self.number)).unwrap_or_default()
    }
}

impl Gather for Store {
    fn start(&mut self, mine: Vec<u8>) -> Result<(), String> {
        self.number += 1;
        self.bytes = mine.len();
        self.all = vec![0; mine.len() * self.ranks];
        self.missing = (0..self.ranks).filter(|rank| *rank != self.rank).collect();
        let key = self.key(self.rank);
        // SAFETY: the program's function, a C string, and as many bytes as it is given.
        let code = unsafe { (self.set)(self.user.0, key.as_ptr(), mine.as_ptr().cast(), mine.len()) };
        if code != 0 {
            return Err(returned(&format!("its set of {key:?}"), code));
        }
        self.all[self.bytes * self.rank..][..self.bytes].copy_from_slice(&mine);
        Ok(())
    }

    fn test(&mut self) -> Result<Option<Vec<u8>>, String> {
        while let Some(&rank) = self.missing.front() {
            let key = self.key(rank);
            let piece = &mut self.all[self.bytes * rank..][..self.bytes];
            // SAFETY: the program's function, a C string, and room for as many bytes as it is given.
            match unsafe { (self.get)(self.user.0, CStr::as_ptr(&key), piece.as_mut_ptr().cast(), piece.len()) } {
                0 => self.missing.pop_front(),
                1 => return Ok(None),
                code => return Err(returned(&format!("its get of {key:?}"), code)),
            };
        }
        Ok(Some(std::mem::take(&mut self.all)))
    }

    fn abandon(&mut self) {
        self.missing.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::HashMap;
    use std::sync::Mutex;

    type Map = Mutex<HashMap<Vec<u8>, Vec<u8>>>;

    unsafe extern "C" fn set(user: *mut c_void, key: *const c_char, value: *const c_void, bytes: usize) -> c_int {
        // SAFETY: the map of the test, a C string, and as many bytes.
        let (map, key, value) = unsafe {
            (&*user.cast::<Map>(), CStr::from_ptr(key), std::slice::from_raw_parts(value.cast::<u8>(), bytes))
        };
        map.lock().unwrap().insert(key.to_bytes().to_vec(), value.to_vec());
        0
    }

    unsafe extern "C" fn get(user: *mut c_void, key: *const c_char, value: *mut c_void, bytes: usize) -> c_int {
        // SAFETY: as above.
        let (map, key) = unsafe { (&*user.cast::<Map>(), CStr::from_ptr(key)) };
        match map.lock().unwrap().get(key.to_bytes()) {
            None => 1,
            Some(found) if found.len() != bytes => 7,
            Some(found) => {
                // SAFETY: room for as many bytes.
                unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), value.cast::<u8>(), bytes) };
                0
            }
        }
    }

    #[test]
    fn a_store_gives_each_rank_what_all_have_set() {
        let mut map: Map = Mutex::default();
        let user = User((&raw mut map).cast());
        let store = |rank| Store {
            set,
            get,
            user,
            prefix: "job".to_owned(),
            rank,
            ranks: 3,
            number: 0,
            bytes: 0,
            all: Vec::new(),
            missing: VecDeque::new(),
        };
        let mut stores: Vec<Store> = (0..3).map(store).collect();
        for round in 0..3u8 {
            stores[2].start(vec![20 + round, 1]).unwrap();
            assert_eq!(stores[2].test().unwrap(), None, "the others have set nothing");
            stores[0].start(vec![round, 2]).unwrap();
            stores[1].start(vec![10 + round, 3]).unwrap();
            for store in &mut stores {
                assert_eq!(store.test().unwrap().unwrap(), [round, 2, 10 + round, 3, 20 + round, 1]);
            }
        }
        stores[0].start(vec![1]).unwrap();
        stores[1].start(vec![1, 2]).unwrap();
        let error = stores[0].test().unwrap_err();
        assert!(error.contains("job/4/1") && error.contains("returned 7"), "{error}");
    }
}
