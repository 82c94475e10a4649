//! Tensors: those that the program gives, and views of those that the library has.
use std::ffi::CString;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::raw::c_void;

use crate::error::{Error, Result, Status};
use crate::sys;
use crate::text::{c_string, slice, string};

macro_rules! element_types {
    ($($name:ident, $number:ident, $bytes:expr;)*) => {
        /// The element type of a tensor: `onnx_train_type`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        #[non_exhaustive]
        pub enum ElementType {
            $($name,)*
            /// A number that this version of the crate does not know.
            Other(i32),
        }

        impl ElementType {
            pub(crate) fn of(number: sys::onnx_train_type) -> ElementType {
                match number {
                    $(sys::$number => ElementType::$name,)*
                    other => ElementType::Other(other),
                }
            }

            pub(crate) fn number(self) -> sys::onnx_train_type {
                match self {
                    $(ElementType::$name => sys::$number,)*
                    ElementType::Other(number) => number,
                }
            }

            /// The bytes of an element; `None` of a type that is not known.
            pub fn size(self) -> Option<usize> {
                match self {
                    $(ElementType::$name => Some($bytes),)*
                    ElementType::Other(_) => None,
                }
            }
        }
    };
}

element_types! {
    Float32, ONNX_TRAIN_FLOAT, 4;
    Float64, ONNX_TRAIN_DOUBLE, 8;
    Float16, ONNX_TRAIN_FLOAT16, 2;
    Bfloat16, ONNX_TRAIN_BFLOAT16, 2;
    Int8, ONNX_TRAIN_INT8, 1;
    Int16, ONNX_TRAIN_INT16, 2;
    Int32, ONNX_TRAIN_INT32, 4;
    Int64, ONNX_TRAIN_INT64, 8;
    Uint8, ONNX_TRAIN_UINT8, 1;
    Uint16, ONNX_TRAIN_UINT16, 2;
    Uint32, ONNX_TRAIN_UINT32, 4;
    Uint64, ONNX_TRAIN_UINT64, 8;
    Bool, ONNX_TRAIN_BOOL, 1;
}

mod sealed {
    pub trait Sealed {}
}

/// A number of Rust that tensors consist of. `u8` also stands for an element of a bool tensor, and `u16` for the bits of
/// a 16-bit float.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// The type of tensors that are made of a slice of these.
    const TYPE: ElementType;

    /// Whether tensors of this type are seen as slices of these.
    fn stands_for(given: ElementType) -> bool {
        given == Self::TYPE
            || match Self::TYPE {
                ElementType::Uint8 => given == ElementType::Bool,
                ElementType::Uint16 => matches!(given, ElementType::Float16 | ElementType::Bfloat16),
                _ => false,
            }
    }
}

macro_rules! elements {
    ($($type:ty, $name:ident;)*) => {
        $(impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
        })*
    };
}

elements! {
    f32, Float32; f64, Float64; i8, Int8; i16, Int16; i32, Int32; i64, Int64; u8, Uint8; u16, Uint16; u32, Uint32;
    u64, Uint64;
}

fn bytes_of<T: Element>(data: &[T]) -> &[u8] {
    // SAFETY: an Element is a number without padding, whose bytes are all initialized.
    unsafe { slice(data.as_ptr().cast(), std::mem::size_of_val(data)) }
}

fn elements_of(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?))
}

#[derive(Clone, Copy, Debug)]
enum Contents<'a> {
    Borrowed(&'a [u8]),
    Scalar(u64), // its bytes are the first ones
    OnDevice(*const c_void),
}

/// A tensor of the program for a run or a training: read where it is, without a copy.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    name: CString,
    kind: ElementType,
    shape: Vec<i64>,
    contents: Contents<'a>,
}

impl<'a> Input<'a> {
    /// A tensor in row-major order. Fails unless `data` has as many elements as the shape says.
    pub fn new<T: Element>(name: &str, shape: &[i64], data: &'a [T]) -> Result<Input<'a>> {
        Input::with_type(name, T::TYPE, shape, data)
    }

    /// The same in a type that `T` stands for: `u16` for the bits of a 16-bit float.
    pub fn with_type<T: Element>(name: &str, kind: ElementType, shape: &[i64], data: &'a [T]) -> Result<Input<'a>> {
        if !T::stands_for(kind) {
            let message = format!("input '{name}' of {kind:?} is given as {:?}", T::TYPE);
            return Err(Error::new(Status::Usage, message));
        }
        if elements_of(shape) != Some(data.len()) {
            let message = format!("input '{name}' has the shape {shape:?} and {} elements", data.len());
            return Err(Error::new(Status::Data, message));
        }
        Ok(Input { name: c_string(name)?, kind, shape: shape.to_vec(), contents: Contents::Borrowed(bytes_of(data)) })
    }

    /// A bool tensor.
    pub fn bools(name: &str, shape: &[i64], data: &'a [bool]) -> Result<Input<'a>> {
        // SAFETY: a bool is a byte.
        let bytes: &[u8] = unsafe { slice(data.as_ptr().cast(), data.len()) };
        Input::with_type(name, ElementType::Bool, shape, bytes)
    }

    /// A scalar, which is copied: `Input::scalar("learning_rate", 1e-3f32)`.
    pub fn scalar<T: Element>(name: &str, value: T) -> Result<Input<'a>> {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(&[value]));
        let contents = Contents::Scalar(u64::from_ne_bytes(bytes));
        Ok(Input { name: c_string(name)?, kind: T::TYPE, shape: Vec::new(), contents })
    }

    /// A tensor in the memory of the session's device.
    ///
    /// # Safety
    /// `data` has the elements that type and shape say, as long as the input is in use. What writes them is complete, or
    /// the session's stream waits for it.
    pub unsafe fn on_device(name: &str, kind: ElementType, shape: &[i64], data: *const c_void) -> Result<Input<'a>> {
        Ok(Input { name: c_string(name)?, kind, shape: shape.to_vec(), contents: Contents::OnDevice(data) })
    }

    /// What C sees of it, as long as it neither ends nor moves.
    pub(crate) fn view(&self) -> sys::onnx_train_tensor {
        let data = match &self.contents {
            Contents::Borrowed(bytes) => bytes.as_ptr().cast(),
            Contents::Scalar(value) => (value as *const u64).cast(),
            Contents::OnDevice(address) => *address,
        };
        let memory = match self.contents {
            Contents::OnDevice(_) => sys::ONNX_TRAIN_DEVICE_MEMORY,
            _ => sys::ONNX_TRAIN_HOST_MEMORY,
        };
        sys::onnx_train_tensor {
            name: self.name.as_ptr(),
            type_: self.kind.number(),
            rank: self.shape.len() as i32,
            shape: self.shape.as_ptr(),
            data: data as *mut c_void, // the library does not write to inputs
            memory,
        }
    }
}

pub(crate) fn views(inputs: &[Input<'_>]) -> Vec<sys::onnx_train_tensor> {
    inputs.iter().map(Input::view).collect()
}

/// A view of a tensor in the library's memory, which lives for 'a.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    raw: &'a sys::onnx_train_tensor,
}

impl<'a> Tensor<'a> {
    pub(crate) fn new(raw: &'a sys::onnx_train_tensor) -> Tensor<'a> {
        Tensor { raw }
    }

    /// Its name.
    pub fn name(&self) -> String {
        // SAFETY: a string that lives as long as the tensor.
        unsafe { string(self.raw.name) }
    }

    /// The type of its elements.
    pub fn element_type(&self) -> ElementType {
        ElementType::of(self.raw.type_)
    }

    /// Its sizes; none of a scalar.
    pub fn shape(&self) -> &'a [i64] {
        // SAFETY: the library's own tensors have as many sizes as their rank says.
        unsafe { slice(self.raw.shape, self.raw.rank.max(0) as usize) }
    }

    /// The number of its elements.
    pub fn len(&self) -> usize {
        elements_of(self.shape()).unwrap_or(0)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn expect<T: Element>(&self) -> Result<()> {
        if T::stands_for(self.element_type()) {
            return Ok(());
        }
        let message = format!("tensor '{}' has elements of {:?}", self.name(), self.element_type());
        Err(Error::new(Status::Usage, message))
    }

    fn not_aligned(&self) -> Error {
        Error::new(Status::Usage, format!("tensor '{}' is not aligned to its elements: copy it", self.name()))
    }

    /// Its elements where they are. Fails if they are of another type, and for arrays of a mapped file at an address
    /// that is no multiple of the element's size, which [`Tensor::to_vec`] copies.
    pub fn data<T: Element>(&self) -> Result<&'a [T]> {
        self.expect::<T>()?;
        if self.raw.data as usize % std::mem::align_of::<T>() != 0 {
            return Err(self.not_aligned());
        }
        // SAFETY: type and address fit, and there are as many elements as the shape says.
        Ok(unsafe { slice(self.raw.data.cast(), self.len()) })
    }

    /// The tensor as one for a run or a training, without a copy. Fails where it is not aligned to its elements.
    pub fn to_input(&self) -> Result<Input<'a>> {
        let kind = self.element_type();
        let size = kind.size().filter(|size| self.raw.data as usize % size == 0).ok_or_else(|| self.not_aligned())?;
        // SAFETY: there are as many elements as the shape says.
        let bytes = unsafe { slice(self.raw.data as *const u8, self.len() * size) };
        let contents = Contents::Borrowed(bytes);
        Ok(Input { name: c_string(&self.name())?, kind, shape: self.shape().to_vec(), contents })
    }

    /// A copy of its elements. Fails if they are of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect::<T>()?;
        let length = self.len();
        let mut copy = Vec::with_capacity(length);
        // SAFETY: there is room for the elements, which are numbers; the source may lack their alignment.
        unsafe {
            if length > 0 {
                std::ptr::copy_nonoverlapping(
                    self.raw.data as *const u8,
                    copy.as_mut_ptr() as *mut u8,
                    length * size_of::<T>(),
                );
            }
            copy.set_len(length);
        }
        Ok(copy)
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?}{:?}", self.name(), self.element_type(), self.shape())
    }
}

/// Tensors in the session's memory, until the next call that changes the session.
///
/// ```compile_fail,E0499
/// # fn f(session: &mut onnx_train::Session, data: &[onnx_train::Input<'_>]) -> onnx_train::Result<()> {
/// let outputs = session.run("step", data)?;
/// session.run("step", data)?;
/// outputs.scalar::<f32>("loss")?; // are gone: this does not compile
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Outputs<'a> {
    tensors: &'a [sys::onnx_train_tensor],
    ports: &'a [sys::onnx_train_port],
    _session: PhantomData<&'a ()>,
}

impl<'a> Outputs<'a> {
    /// # Safety
    /// Both live for 'a. `ports` describe the outputs.
    pub(crate) unsafe fn new(tensors: &'a [sys::onnx_train_tensor], ports: &'a [sys::onnx_train_port]) -> Outputs<'a> {
        Outputs { tensors, ports, _session: PhantomData }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Tensor<'a>> + 'a {
        self.tensors.iter().map(Tensor::new)
    }

    /// The output of this name or, if there is none, of this role: "loss" is the loss also where the model has a value
    /// of its own of that name. Fails when there is neither.
    pub fn get(&self, name: &str) -> Result<Tensor<'a>> {
        let named = |name: &str| self.iter().find(|tensor| tensor.name() == name);
        // SAFETY: the strings of ports live as long as the session.
        let mut of_role = self.ports.iter().filter(|port| unsafe { string(port.role) } == name);
        named(name)
            .or_else(|| of_role.find_map(|port| named(&unsafe { string(port.name) })))
            .ok_or_else(|| Error::new(Status::Usage, format!("the run has no output '{name}'")))
    }

    /// The elements of an output: [`Outputs::get`] and [`Tensor::data`].
    pub fn data<T: Element>(&self, name: &str) -> Result<&'a [T]> {
        self.get(name)?.data()
    }

    /// The first element of an output.
    pub fn scalar<T: Element>(&self, name: &str) -> Result<T> {
        let tensor = self.get(name)?;
        let empty = || Error::new(Status::Usage, format!("output '{name}' has no elements"));
        tensor.data()?.first().copied().ok_or_else(empty)
    }
}
