//! Texts that a causal language model writes.
use std::os::raw::c_void;

use crate::error::Result;
use crate::options::Options;
use crate::session::Session;
use crate::sys;
use crate::text::string;
use crate::trainer::{Failures, Next};

struct Written<'w> {
    texts: Vec<Vec<i64>>,
    on_token: &'w mut dyn FnMut(usize, i64) -> Next,
    failures: Failures,
}

unsafe extern "C" fn on_token(user: *mut c_void, text: usize, token: i64) -> sys::onnx_train_next {
    let Written { texts, on_token, failures } = &mut *user.cast::<Written<'_>>();
    failures.guard(|| {
        texts[text].push(token);
        Ok(on_token(text, token))
    })
}

impl Session {
    /// The tokens that a causal language model writes after each prompt: `onnx_train_generate`, which has the options.
    /// `on_token` is called with the number of the text and each token that is drawn; [`Next::EndText`] completes this
    /// text, and [`Next::Stop`] ends all.
    pub fn generate<P: AsRef<[i64]>>(
        &mut self,
        prompts: &[P],
        options: &Options,
        mut on_each: impl FnMut(usize, i64) -> Next,
    ) -> Result<Vec<Vec<i64>>> {
        let options = options.views()?;
        // as_ref is asked once: address and length are of one slice.
        let prompts: Vec<&[i64]> = prompts.iter().map(AsRef::as_ref).collect();
        let begins: Vec<*const i64> = prompts.iter().map(|prompt| prompt.as_ptr()).collect();
        let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
        let texts = vec![Vec::new(); prompts.len()];
        let mut written = Written { texts, on_token: &mut on_each, failures: Failures::default() };
        // SAFETY: all that the pointers refer to lives until the call returns.
        let status = unsafe {
            sys::onnx_train_generate(
                self.get(),
                begins.as_ptr(),
                lengths.as_ptr(),
                prompts.len(),
                options.as_ptr(),
                options.len(),
                Some(on_token),
                (&mut written as *mut Written<'_>).cast(),
            )
        };
        written.failures.check(status)?;
        Ok(written.texts)
    }

    /// Why the last [`Session::generate`] was not as fast as it is with a cache; "" if it was.
    pub fn generate_note(&self) -> String {
        // SAFETY: valid until the next call of it.
        unsafe { string(sys::onnx_train_generate_note(self.get())) }
    }
}
