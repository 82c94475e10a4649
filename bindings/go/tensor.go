package onnxtrain

// #include <stdlib.h>
// #include "calls.h"
import "C"

import (
	"fmt"
	"runtime"
	"strconv"
	"unsafe"
)

// Type is the type of a tensor's elements.
type Type int

const (
	Float32  Type = C.ONNX_TRAIN_FLOAT
	Float64  Type = C.ONNX_TRAIN_DOUBLE
	Float16  Type = C.ONNX_TRAIN_FLOAT16  // its bits are uint16 here
	BFloat16 Type = C.ONNX_TRAIN_BFLOAT16 // its bits are uint16 here
	Int8     Type = C.ONNX_TRAIN_INT8
	Int16    Type = C.ONNX_TRAIN_INT16
	Int32    Type = C.ONNX_TRAIN_INT32
	Int64    Type = C.ONNX_TRAIN_INT64
	Uint8    Type = C.ONNX_TRAIN_UINT8
	Uint16   Type = C.ONNX_TRAIN_UINT16
	Uint32   Type = C.ONNX_TRAIN_UINT32
	Uint64   Type = C.ONNX_TRAIN_UINT64
	Bool     Type = C.ONNX_TRAIN_BOOL // seen as uint8
)

var typeNames = map[Type]string{Float32: "float32", Float64: "float64", Float16: "float16", BFloat16: "bfloat16", Int8: "int8",
	Int16: "int16", Int32: "int32", Int64: "int64", Uint8: "uint8", Uint16: "uint16", Uint32: "uint32", Uint64: "uint64", Bool: "bool"}

func (t Type) String() string { return nameIn(typeNames, t) }

// nameIn gives the name of a constant, or the number that the library has for what this package does not know.
func nameIn[T ~int](names map[T]string, value T) string {
	if name, isKnown := names[value]; isKnown {
		return name
	}
	return strconv.Itoa(int(value))
}

// Number is an element of a tensor as Go sees it.
type Number interface {
	float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

func typeOf[T Number | bool]() Type {
	var zero T
	switch any(zero).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	}
	return Bool
}

// standsFor says whether tensors of this type are seen as slices of T.
func standsFor[T Number | bool](given Type) bool {
	switch own := typeOf[T](); own {
	case given:
		return true
	case Uint8:
		return given == Bool
	case Uint16:
		return given == Float16 || given == BFloat16
	}
	return false
}

// elements gives the product of the sizes; -1 for one that is negative, and for a product that no memory holds.
func elements(shape []int64) int {
	const most = 1 << 47
	product := int64(1)
	for _, size := range shape {
		if size < 0 || (size > 0 && product > most/size) {
			return -1
		}
		product *= size
	}
	return int(product)
}

// Input is a tensor of the program for a run or a training. Its slice is read where it is, and must not be changed
// meanwhile; only those of Batches are copied, unless they are in a Buffer or a view of the library's memory.
type Input struct {
	name   string
	kind   Type
	shape  []int64
	data   unsafe.Pointer
	bytes  int
	ofC    bool // data is memory of C
	memory C.onnx_train_memory
	owner  any   // of memory of C
	err    error // what is wrong with it, which the call that takes it says
}

// NewInput is a tensor in row-major order. The call that takes it fails unless data has as many elements as the shape says.
func NewInput[T Number | bool](name string, shape []int64, data []T) Input {
	return NewInputOf(name, typeOf[T](), shape, data)
}

// NewInputOf is the same in a type that T stands for: uint16 for the bits of a 16-bit float.
func NewInputOf[T Number | bool](name string, kind Type, shape []int64, data []T) Input {
	input := Input{name: name, kind: kind, shape: append([]int64(nil), shape...)}
	if !standsFor[T](kind) {
		input.err = usage("input '%s' of type %v is given as a slice of type %v", name, kind, typeOf[T]())
	} else if elements(shape) != len(data) {
		input.err = wrongShape(name, shape, len(data))
	} else if len(data) > 0 {
		input.data = unsafe.Pointer(&data[0])
		input.bytes = len(data) * int(unsafe.Sizeof(data[0]))
	}
	return input
}

func wrongShape(name string, shape []int64, count int) error {
	return &Error{DataError, "", fmt.Sprintf("input '%s' has the shape %v and %d elements", name, shape, count)}
}

// Scalar is a tensor without axes: Scalar("learning_rate", float32(1e-3)).
func Scalar[T Number | bool](name string, value T) Input { return NewInput(name, nil, []T{value}) }

// DeviceInput is a tensor in the memory of the session's device (Session.Device).
func DeviceInput(name string, kind Type, shape []int64, address unsafe.Pointer) Input {
	return Input{name: name, kind: kind, shape: append([]int64(nil), shape...), data: address, ofC: true,
		memory: C.ONNX_TRAIN_DEVICE_MEMORY}
}

// Buffer is memory of C for elements, so that Batches need no copy. Its slice lives until Close, or as long as the buffer.
type Buffer[T Number] struct {
	Slice []T
	block unsafe.Pointer
}

// NewBuffer has room for so many elements, all zero.
func NewBuffer[T Number](count int) *Buffer[T] {
	var zero T
	size := unsafe.Sizeof(zero)
	block := C.calloc(C.size_t(count)+1, C.size_t(size)) // also of none an address
	buffer := &Buffer[T]{unsafe.Slice((*T)(block), count), block}
	runtime.SetFinalizer(buffer, (*Buffer[T]).Close)
	return buffer
}

// Input is a tensor of the first elements of the buffer.
func (b *Buffer[T]) Input(name string, shape []int64) Input {
	count := elements(shape)
	if count < 0 || count > len(b.Slice) {
		return Input{name: name, err: wrongShape(name, shape, len(b.Slice))}
	}
	input := NewInput(name, shape, b.Slice[:count])
	input.ofC, input.owner = true, b
	return input
}

// Close frees the memory.
func (b *Buffer[T]) Close() error {
	C.free(b.block)
	b.Slice, b.block = nil, nil
	runtime.SetFinalizer(b, nil)
	return nil
}

// Tensor is one in the library's memory. Those of a Session live until the next call of the session, those of a Dataset as
// long as it.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int64
	data  unsafe.Pointer
	owner owner
	call  uint64
}

// owner is the session or dataset whose memory it is.
type owner interface{ holds(call uint64) error }

func sizes(shape *C.int64_t, rank C.int32_t) []int64 {
	if rank < 0 {
		return nil
	}
	read := make([]int64, int(rank))
	for axis, size := range list(shape, C.size_t(rank)) {
		read[axis] = int64(size)
	}
	return read
}

func tensors(array *C.onnx_train_tensor, count C.size_t, owner owner, call uint64) []Tensor {
	var read []Tensor
	for _, tensor := range list(array, count) {
		read = append(read, Tensor{C.GoString(tensor.name), Type(tensor._type), sizes(tensor.shape, tensor.rank),
			tensor.data, owner, call})
	}
	return read
}

func check[T Number](t Tensor) error {
	if !standsFor[T](t.Type) {
		return usage("tensor '%s' has elements of type %v, not %v", t.Name, t.Type, typeOf[T]())
	}
	if t.owner == nil {
		return usage("tensor '%s' is of no session and no dataset", t.Name)
	}
	return t.owner.holds(t.call)
}

func isAligned(address unsafe.Pointer, size uintptr) bool { return uintptr(address)%size == 0 }

// View gives the elements where they are. It fails if they are of another type or gone, and for arrays of a mapped file at an
// address that is no multiple of the elements' size, which Copy copies. The slice is valid as long as the tensor's memory:
// keep the session or dataset, as `defer session.Close()` does.
func View[T Number](t Tensor) ([]T, error) {
	if err := check[T](t); err != nil {
		return nil, err
	}
	var zero T
	if !isAligned(t.data, unsafe.Sizeof(zero)) {
		return nil, usage("tensor '%s' is not aligned to its elements: copy it", t.Name)
	}
	return unsafe.Slice((*T)(t.data), elements(t.Shape)), nil
}

// Copy gives a copy of the elements.
func Copy[T Number](t Tensor) ([]T, error) {
	if err := check[T](t); err != nil {
		return nil, err
	}
	copied := make([]T, elements(t.Shape))
	if len(copied) > 0 {
		bytes := len(copied) * int(unsafe.Sizeof(copied[0]))
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&copied[0])), bytes), unsafe.Slice((*byte)(t.data), bytes))
	}
	runtime.KeepAlive(t.owner)
	return copied, nil
}

// Input is the tensor as one for a run or a training, without a copy.
func (t Tensor) Input() Input {
	size := sizeOf(t.Type)
	input := Input{name: t.Name, kind: t.Type, shape: t.Shape, data: t.data, ofC: true, owner: t.owner}
	input.bytes = elements(t.Shape) * size
	if t.owner == nil {
		input.err = usage("tensor '%s' is of no session and no dataset", t.Name)
	} else if err := t.owner.holds(t.call); err != nil {
		input.err = err
	} else if size == 0 || !isAligned(t.data, uintptr(size)) {
		input.err = usage("tensor '%s' is not aligned to its elements: copy it", t.Name)
	}
	return input
}

func sizeOf(kind Type) int {
	switch kind {
	case Int8, Uint8, Bool:
		return 1
	case Int16, Uint16, Float16, BFloat16:
		return 2
	case Int32, Uint32, Float32:
		return 4
	case Int64, Uint64, Float64:
		return 8
	}
	return 0
}
