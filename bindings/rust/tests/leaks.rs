//! A thousand sessions leave nothing behind, as the counters of malloc say.
mod paths;
#[path = "../examples/sessions.rs"]
mod sessions;

#[repr(C)]
struct Mallinfo2 {
    fields: [usize; 10],
}

extern "C" {
    fn mallinfo2() -> Mallinfo2; // glibc's, from version 2.33 on
}

/// Bytes that malloc has given out, from its arenas and mapped.
fn bytes_in_use() -> usize {
    // SAFETY: it reads counters.
    let info = unsafe { mallinfo2() }.fields;
    info[7] + info[4] // uordblks, hblkhd
}

#[test]
fn a_thousand_sessions_leak_nothing() {
    let model = paths::mlp();
    let use_sessions = |count| (0..count).for_each(|_| sessions::use_a_session(model.to_str().unwrap()).unwrap());
    use_sessions(50); // what the library makes once
    let before = bytes_in_use();
    use_sessions(1000);
    let after = bytes_in_use();
    assert!(after < before + 1000 * 8, "1000 sessions leave {} bytes", after - before);
}
