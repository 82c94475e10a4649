package onnxtrain

// #include <stdlib.h>
// #include "calls.h"
import "C"

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"sort"
	"strings"
	"unsafe"
)

// scope is what one call of C needs: memory of C for its arguments, and Go's memory that C reads where it is.
type scope struct {
	blocks []unsafe.Pointer
	pins   []pin
	keep   []any // owners of memory of C
	err    error // of an argument
}

// A tensor in C's memory, and its data in Go's.
type pin struct {
	tensor *C.onnx_train_tensor
	data   unsafe.Pointer
}

func (c *scope) free() {
	for _, block := range c.blocks {
		C.free(block)
	}
	*c = scope{}
}

// alloc gives zeroed memory of C until free.
func (c *scope) alloc(count int, size uintptr) unsafe.Pointer {
	if count == 0 {
		return nil
	}
	block := C.calloc(C.size_t(count), C.size_t(size))
	c.blocks = append(c.blocks, block)
	return block
}

func (c *scope) text(text string) *C.char {
	if strings.IndexByte(text, 0) >= 0 && c.err == nil {
		c.err = usage("%q has a zero byte", text)
	}
	copied := C.CString(text)
	c.blocks = append(c.blocks, unsafe.Pointer(copied))
	return copied
}

// options gives them in the order of their names.
func (c *scope) options(options Options) (*C.onnx_train_option, C.size_t) {
	names := make([]string, 0, len(options))
	for name := range options {
		names = append(names, name)
	}
	sort.Strings(names)
	var pairs [][2]string
	for _, name := range names {
		if list, isList := options[name].([]string); isList {
			for _, value := range list {
				pairs = append(pairs, [2]string{name, value})
			}
			continue
		}
		pairs = append(pairs, [2]string{name, fmt.Sprint(options[name])})
	}
	array := (*C.onnx_train_option)(c.alloc(len(pairs), unsafe.Sizeof(C.onnx_train_option{})))
	views := unsafe.Slice(array, len(pairs))
	for i, pair := range pairs {
		views[i].name, views[i].value = c.text(pair[0]), c.text(pair[1])
	}
	return array, C.size_t(len(pairs))
}

// inputs gives tensors whose data are in place as long as a call lasts or, if they are copied, until free.
func (c *scope) inputs(inputs []Input, copies bool) (*C.onnx_train_tensor, C.size_t) {
	array := (*C.onnx_train_tensor)(c.alloc(len(inputs), unsafe.Sizeof(C.onnx_train_tensor{})))
	tensors := unsafe.Slice(array, len(inputs))
	for i := range tensors {
		given, tensor := &inputs[i], &tensors[i]
		if given.err != nil && c.err == nil {
			c.err = given.err
		}
		c.keep = append(c.keep, given.owner)
		tensor.name = c.text(given.name)
		tensor._type = C.onnx_train_type(given.kind)
		tensor.rank = C.int32_t(len(given.shape))
		shape := (*C.int64_t)(c.alloc(len(given.shape), 8))
		for axis, size := range given.shape {
			unsafe.Slice(shape, len(given.shape))[axis] = C.int64_t(size)
		}
		tensor.shape = shape
		tensor.memory = given.memory
		switch {
		case given.ofC:
			tensor.data = given.data
		case copies:
			tensor.data = c.alloc(given.bytes, 1)
			copy(unsafe.Slice((*byte)(tensor.data), given.bytes), unsafe.Slice((*byte)(given.data), given.bytes))
		default:
			c.pins = append(c.pins, pin{tensor, given.data})
		}
	}
	return array, C.size_t(len(inputs))
}

// handle is what a call needs to be open. Nil is what it does without.
type handle interface{ open() error }

// call gives the error of f, which calls C. Objects in keep live until then.
func (c *scope) call(f func() C.onnx_train_status, keep ...handle) error {
	if c.err != nil {
		return c.err
	}
	for _, object := range keep {
		if err := object.open(); err != nil {
			return err
		}
	}
	// The text of a failure is that of a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := C.onnx_train_status(C.ONNX_TRAIN_OK)
	pinned(c, c.pins, func() { status = f() })
	runtime.KeepAlive(keep)
	runtime.KeepAlive(c.keep)
	if status == C.ONNX_TRAIN_OK {
		return nil
	}
	return &Error{Status(status), C.GoString(C.onnx_train_last_error_code()), C.GoString(C.onnx_train_last_error())}
}

// pinned calls f with the data of these tensors in place. C must not keep addresses of Go's memory, so they are arguments
// of a function of C, eight at a time, within which f is called.
func pinned(c *scope, pins []pin, f func()) {
	if len(pins) == 0 {
		f()
		return
	}
	const most = 8
	count := len(pins)
	if count > most {
		count = most
	}
	tensors := (**C.onnx_train_tensor)(c.alloc(count, unsafe.Sizeof(uintptr(0))))
	var data [most]*C.char
	for i, pin := range pins[:count] {
		unsafe.Slice(tensors, count)[i] = pin.tensor
		data[i] = (*C.char)(pin.data)
	}
	call := cgo.NewHandle(func() { pinned(c, pins[count:], f) })
	defer call.Delete()
	C.onnxtrain_pin(C.uintptr_t(call), tensors, C.size_t(count), data[0], data[1], data[2], data[3], data[4], data[5],
		data[6], data[7])
}

//export onnxtrainPinned
func onnxtrainPinned(call C.uintptr_t) {
	cgo.Handle(call).Value().(func())()
}
