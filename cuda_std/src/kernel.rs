//! The table of a kernel's name, parameters and launch bounds that device, host, emulator and PTX tests all read.

use crate::imp;

/// A kernel. `#[kernel]` makes one beside each function.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The entry's name in the PTX.
    pub name: &'static str,
    /// The parameters, in order.
    pub params: &'static [Param],
    /// Threads of every block, if fixed.
    pub threads: Option<u32>,
    /// Blocks that fit a multiprocessor, if promised.
    pub min_blocks: Option<u32>,
    /// The only architecture it is built for (`90a`), if it uses what others lack.
    pub arch: Option<&'static str>,
    /// What the emulator runs. Nothing on the GPU.
    pub entry: imp::Entry,
}

/// A kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in the source.
    pub name: &'static str,
    /// Its type.
    pub ty: ParamType,
}

/// What a kernel's parameter can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamType {
    /// A device pointer.
    Ptr,
    /// `i32`
    I32,
    /// `u32`
    U32,
    /// `i64`
    I64,
    /// `u64`
    U64,
    /// `f32`
    F32,
}

impl ParamType {
    /// Size and alignment in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::Ptr | Self::I64 | Self::U64 => 8,
        }
    }
}

/// Types that a kernel can take: i32, u32, i64, u64, f32 and thin raw pointers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a kernel",
    label = "not an i32, u32, i64, u64, f32 or thin raw pointer",
    note = "pass scalars one by one, slices as a pointer and a length, and structs by pointer"
)]
pub trait KernelParam: Copy {
    /// What the tables call the type.
    const TYPE: ParamType;
    /// The value in the low bits of a word.
    fn to_word(self) -> u64;
    /// The value of the low bits of a word.
    fn from_word(word: u64) -> Self;
}

macro_rules! integer {
    ($($t:ty => $name:ident),*) => { $(
        impl KernelParam for $t {
            const TYPE: ParamType = ParamType::$name;
            #[inline]
            fn to_word(self) -> u64 {
                self as u64
            }
            #[inline]
            fn from_word(word: u64) -> Self {
                word as $t
            }
        }
    )* };
}
integer!(i32 => I32, u32 => U32, i64 => I64, u64 => U64);

impl KernelParam for f32 {
    const TYPE: ParamType = ParamType::F32;
    #[inline]
    fn to_word(self) -> u64 {
        self.to_bits().into()
    }
    #[inline]
    fn from_word(word: u64) -> Self {
        Self::from_bits(word as u32)
    }
}

impl<T> KernelParam for *const T {
    const TYPE: ParamType = ParamType::Ptr;
    #[inline]
    fn to_word(self) -> u64 {
        self.expose_provenance() as u64
    }
    #[inline]
    fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance(word as usize)
    }
}

impl<T> KernelParam for *mut T {
    const TYPE: ParamType = ParamType::Ptr;
    #[inline]
    fn to_word(self) -> u64 {
        self.expose_provenance() as u64
    }
    #[inline]
    fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance_mut(word as usize)
    }
}
