//! The door between SQLite's C interface and the journal.
//!
//! A file of ours is a [`TornFile`] with the unix VFS's own file right behind it in the memory that
//! SQLite provides. Files that are not journaled are opened in that memory by the unix VFS directly,
//! so none of this code is called for them.

#![allow(unsafe_code, reason = "SQLite calls a VFS through C functions and hands it raw memory")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rusqlite::ffi::{
    SQLITE_CANTOPEN, SQLITE_FCNTL_CHUNK_SIZE, SQLITE_FCNTL_MMAP_SIZE, SQLITE_FCNTL_SIZE_HINT, SQLITE_IOERR,
    SQLITE_IOERR_DELETE, SQLITE_IOERR_FSTAT, SQLITE_IOERR_FSYNC, SQLITE_IOERR_READ, SQLITE_IOERR_TRUNCATE,
    SQLITE_IOERR_WRITE, SQLITE_NOTFOUND, SQLITE_OK, SQLITE_OPEN_CREATE, SQLITE_OPEN_MAIN_DB,
    SQLITE_OPEN_MAIN_JOURNAL, SQLITE_OPEN_SUPER_JOURNAL, SQLITE_OPEN_WAL, sqlite3_file, sqlite3_int64,
    sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find, sqlite3_vfs_register, sqlite3_vfs_unregister,
};

use crate::journal::{Before, FileId, Shared};

/// The kinds of file that must survive; others (temporary ones) are left alone.
const JOURNALED: c_int =
    SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL;

/// The kinds whose first sync also syncs the directory, as in `unixOpen`.
const SYNCING_THEIR_DIRECTORY: c_int = SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL;

/// A VFS known to SQLite, until dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    name: String,
    vfs: *mut sqlite3_vfs,
}

// SAFETY: the pointer is only passed to sqlite3_vfs_unregister, which takes SQLite's own lock.
unsafe impl Send for Registration {}
// SAFETY: nothing is done through a shared reference except reading the name.
unsafe impl Sync for Registration {}

/// What `pAppData` of a VFS of ours points to. Never freed: see [`Registration::new`].
struct AppData {
    unix: *mut sqlite3_vfs,
    /// Weak, so that the journal goes when the test is done with it.
    shared: Weak<Shared>,
}

/// What SQLite sees as a `sqlite3_file`. The unix VFS's file follows it in memory.
#[repr(C)]
struct TornFile {
    base: sqlite3_file,
    handle: *mut Handle,
}

struct Handle {
    shared: Arc<Shared>,
    file: FileId,
    /// Where the file is, to be synced with the first sync if due.
    directory: PathBuf,
    directory_due: AtomicBool,
}

// === impl Registration ===

impl Registration {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        static REGISTERED: AtomicU64 = AtomicU64::new(0);
        let name = format!("torn-disk-{}", REGISTERED.fetch_add(1, Ordering::Relaxed));
        let c_name = CString::new(name.as_str()).expect("the name was made here without a zero byte");
        // SAFETY: the name is a C string; SQLite initialises itself here if it has not yet.
        let unix = unsafe { sqlite3_vfs_find(c"unix".as_ptr()) };
        assert!(!unix.is_null(), "SQLite was built without its unix VFS");
        // SAFETY: a registered VFS stays valid, and SQLite changes nothing in it but pNext under its lock,
        // which is not used from the copy.
        let mut vfs = unsafe { *unix };
        // The unix VFS's other methods look at nothing of the VFS they are called with but mxPathname,
        // so they work on the copy.
        vfs.szOsFile += c_int::try_from(size_of::<TornFile>()).expect("two pointers");
        vfs.pNext = ptr::null_mut();
        // A connection may keep the VFS beyond its last open file and beyond the test's handle to the
        // disk, so these few hundred bytes are given up for good.
        vfs.zName = c_name.into_raw();
        vfs.pAppData = Box::into_raw(Box::new(AppData { unix, shared: Arc::downgrade(shared) })).cast();
        vfs.xOpen = Some(open);
        vfs.xDelete = Some(delete);
        let vfs = Box::into_raw(Box::new(vfs));
        // SAFETY: the VFS is complete and is never freed; it does not become the default.
        let code = unsafe { sqlite3_vfs_register(vfs, 0) };
        assert_eq!(code, SQLITE_OK, "SQLite refuses another VFS");
        Self { name, vfs }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it was registered in `new` and its memory is still there for open connections.
        unsafe { sqlite3_vfs_unregister(self.vfs) };
    }
}

// === The VFS's methods ===

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    caught(SQLITE_CANTOPEN, || {
        // SAFETY: SQLite calls with the VFS registered in `new`, whose app data is never freed.
        let data = unsafe { &*(*vfs).pAppData.cast::<AppData>() };
        // SAFETY: a file that failed to open must say so by having no methods.
        unsafe { (*file).pMethods = ptr::null() };
        // SAFETY: the unix VFS has an xOpen and is never unregistered.
        let Some(unix_open) = (unsafe { (*data.unix).xOpen }) else { return SQLITE_CANTOPEN };
        if name.is_null() || flags & JOURNALED == 0 {
            // SAFETY: SQLite's own arguments; the memory is larger than the unix VFS needs.
            return unsafe { unix_open(data.unix, name, file, flags, out_flags) };
        }
        let Some(shared) = data.shared.upgrade() else { return SQLITE_CANTOPEN };
        // SAFETY: not null, and SQLite's file names are C strings.
        let path = unsafe { as_path(name) };

        let mut live = shared.lock();
        let before = if path.symlink_metadata().is_ok() { Before::Present } else { Before::Absent };
        let unix_file = behind(file);
        // SAFETY: SQLite gave szOsFile bytes, which has room for the unix file behind ours; a null
        // pMethods is how SQLite hands over a file to open.
        let code = unsafe {
            (*unix_file).pMethods = ptr::null();
            unix_open(data.unix, name, unix_file, flags, out_flags)
        };
        if code != SQLITE_OK {
            return code;
        }
        // SAFETY: the unix file was opened just now.
        let content = || unsafe { content_of(unix_file) };
        let id = match live.opened(path, before, content) {
            Ok(id) => id,
            Err(code) => {
                // SAFETY: the unix file is open, and is not used after this.
                unsafe { close_unix(unix_file) };
                return code;
            }
        };
        drop(live);
        let directory_due = flags & SQLITE_OPEN_CREATE != 0 && flags & SYNCING_THEIR_DIRECTORY != 0;
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        let handle = Handle { shared, file: id, directory, directory_due: directory_due.into() };
        // SAFETY: the memory is SQLite's for this file, aligned for pointers and large enough.
        unsafe {
            let torn = file.cast::<TornFile>();
            (*torn).handle = Box::into_raw(Box::new(handle));
            (*torn).base.pMethods = &raw const METHODS;
        }
        SQLITE_OK
    })
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync_directory: c_int) -> c_int {
    caught(SQLITE_IOERR_DELETE, || {
        // SAFETY: as in `open`.
        let data = unsafe { &*(*vfs).pAppData.cast::<AppData>() };
        // SAFETY: as in `open`.
        let Some(unix_delete) = (unsafe { (*data.unix).xDelete }) else { return SQLITE_IOERR_DELETE };
        // SAFETY: SQLite's own arguments. The real directory is not synced, like the real files.
        let real = || unsafe { unix_delete(data.unix, name, 0) };
        match data.shared.upgrade() {
            // SAFETY: SQLite deletes by name, a C string.
            Some(shared) => shared.delete(unsafe { as_path(name) }, sync_directory & 1 != 0, real),
            None => real(),
        }
    })
}

// === A file's methods ===

/// Version 2: with shared memory for the log's index, without memory-mapped content.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    caught(SQLITE_IOERR, || {
        // SAFETY: SQLite closes an open file once; both parts are whole until here.
        unsafe {
            let code = close_unix(behind(file));
            let torn = file.cast::<TornFile>();
            (*torn).base.pMethods = ptr::null();
            drop(Box::from_raw((*torn).handle));
            code
        }
    })
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    data: *const c_void,
    amount: c_int,
    offset: sqlite3_int64,
) -> c_int {
    caught(SQLITE_IOERR_WRITE, || {
        let (Ok(len), Ok(start)) = (usize::try_from(amount), usize::try_from(offset)) else {
            return SQLITE_IOERR_WRITE;
        };
        // SAFETY: SQLite passes an open file of ours and `amount` readable bytes.
        let (handle, bytes) = unsafe { (handle(file), std::slice::from_raw_parts(data.cast::<u8>(), len)) };
        handle.shared.write(handle.file, start, bytes, |stored| {
            let amount = c_int::try_from(stored.len()).unwrap_or(amount);
            // SAFETY: the unix file is open, and so many bytes are readable.
            unsafe {
                let unix = behind(file);
                (*(*unix).pMethods)
                    .xWrite
                    .map_or(SQLITE_IOERR_WRITE, |write| write(unix, stored.as_ptr().cast(), amount, offset))
            }
        })
    })
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    caught(SQLITE_IOERR_TRUNCATE, || {
        let Ok(new_size) = usize::try_from(size) else { return SQLITE_IOERR_TRUNCATE };
        // SAFETY: SQLite passes an open file of ours.
        let handle = unsafe { handle(file) };
        handle.shared.truncate(handle.file, new_size, || {
            // SAFETY: the unix file is open.
            unsafe {
                let unix = behind(file);
                (*(*unix).pMethods).xTruncate.map_or(SQLITE_IOERR_TRUNCATE, |truncate| truncate(unix, size))
            }
        })
    })
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _flags: c_int) -> c_int {
    caught(SQLITE_IOERR_FSYNC, || {
        // SAFETY: SQLite passes an open file of ours.
        let handle = unsafe { handle(file) };
        let due = handle.directory_due.load(Ordering::Acquire);
        let code = handle.shared.sync(handle.file, due.then_some(handle.directory.as_path()));
        if code == SQLITE_OK {
            handle.directory_due.store(false, Ordering::Release);
        }
        code
    })
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, op: c_int, argument: *mut c_void) -> c_int {
    match op {
        // These would change or map the file past the journal. Not passed on, they have no effect.
        SQLITE_FCNTL_SIZE_HINT => SQLITE_OK,
        SQLITE_FCNTL_CHUNK_SIZE | SQLITE_FCNTL_MMAP_SIZE => SQLITE_NOTFOUND,
        // SAFETY: SQLite's own arguments for the unix file, which is open.
        _ => unsafe {
            let unix = behind(file);
            (*(*unix).pMethods).xFileControl.map_or(SQLITE_NOTFOUND, |control| control(unix, op, argument))
        },
    }
}

/// A method that the unix file carries out by itself.
macro_rules! passed_on {
    ($($name:ident = $method:ident($($argument:ident: $kind:ty),*);)*) => { $(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($argument: $kind),*) -> c_int {
            // SAFETY: SQLite's own arguments for the unix file, which is open as long as ours is.
            unsafe {
                let unix = behind(file);
                (*(*unix).pMethods).$method.map_or(SQLITE_IOERR, |method| method(unix, $($argument),*))
            }
        }
    )* };
}

passed_on! {
    read = xRead(data: *mut c_void, amount: c_int, offset: sqlite3_int64);
    file_size = xFileSize(size: *mut sqlite3_int64);
    lock = xLock(level: c_int);
    unlock = xUnlock(level: c_int);
    check_reserved_lock = xCheckReservedLock(reserved: *mut c_int);
    sector_size = xSectorSize();
    device_characteristics = xDeviceCharacteristics();
    shm_map = xShmMap(page: c_int, size: c_int, extend: c_int, mapped: *mut *mut c_void);
    shm_lock = xShmLock(offset: c_int, n: c_int, flags: c_int);
    shm_unmap = xShmUnmap(delete: c_int);
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    // SAFETY: the unix file is open as long as ours is.
    unsafe {
        let unix = behind(file);
        if let Some(barrier) = (*(*unix).pMethods).xShmBarrier {
            barrier(unix);
        }
    }
}

// === Pointers ===

/// The unix VFS's file that belongs to a file of ours.
fn behind(file: *mut sqlite3_file) -> *mut sqlite3_file {
    file.wrapping_byte_add(size_of::<TornFile>())
}

/// # Safety
/// `file` is an open file of ours, and stays open as long as the handle is used.
unsafe fn handle<'a>(file: *mut sqlite3_file) -> &'a Handle {
    // SAFETY: `open` made it, and only `close` frees it.
    unsafe { &*(*file.cast::<TornFile>()).handle }
}

/// # Safety
/// `name` is a C string that outlives the path.
unsafe fn as_path<'a>(name: *const c_char) -> &'a Path {
    // SAFETY: as required of the caller.
    let name = unsafe { CStr::from_ptr(name) };
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

/// # Safety
/// `unix` is an open file of the unix VFS, and is not used afterwards.
unsafe fn close_unix(unix: *mut sqlite3_file) -> c_int {
    // SAFETY: as required of the caller.
    unsafe { (*(*unix).pMethods).xClose.map_or(SQLITE_IOERR, |close| close(unix)) }
}

/// Reads a file through its own handle: a second one of this process, closed, would end the locks.
///
/// # Safety
/// `unix` is an open file of the unix VFS.
unsafe fn content_of(unix: *mut sqlite3_file) -> Result<Vec<u8>, c_int> {
    // SAFETY: as required of the caller.
    let methods = unsafe { &*(*unix).pMethods };
    let (Some(file_size), Some(read)) = (methods.xFileSize, methods.xRead) else { return Err(SQLITE_IOERR) };
    let mut size: sqlite3_int64 = 0;
    // SAFETY: the file is open and the size has a place.
    let code = unsafe { file_size(unix, &raw mut size) };
    if code != SQLITE_OK {
        return Err(code);
    }
    let mut content = vec![0; usize::try_from(size).map_err(|_| SQLITE_IOERR_FSTAT)?];
    // xRead takes its length as a C int; a mebibyte at a time is far below its limit.
    for (index, part) in content.chunks_mut(1 << 20).enumerate() {
        let amount = c_int::try_from(part.len()).map_err(|_| SQLITE_IOERR_READ)?;
        let offset = sqlite3_int64::try_from(index << 20).map_err(|_| SQLITE_IOERR_READ)?;
        // SAFETY: the file is open, and the part has so many bytes.
        let code = unsafe { read(unix, part.as_mut_ptr().cast(), amount, offset) };
        if code != SQLITE_OK {
            return Err(code);
        }
    }
    Ok(content)
}

/// Keeps a panic from crossing into C, where it would abort the process without a word of the test.
fn caught(failed: c_int, body: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}
