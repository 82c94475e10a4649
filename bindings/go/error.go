package onnxtrain

// #include "calls.h"
import "C"

import "fmt"

// Status is the kind of a failure.
type Status int

const (
	Usage       Status = C.ONNX_TRAIN_USAGE       // an argument that is wrong whatever the model holds
	File        Status = C.ONNX_TRAIN_FILE        // cannot be read or written, or does not hold what it should
	Unsupported Status = C.ONNX_TRAIN_UNSUPPORTED // the model, or what is asked of it
	DataError   Status = C.ONNX_TRAIN_DATA        // inputs of a run: names, types, shapes, numbers out of range
	Memory      Status = C.ONNX_TRAIN_MEMORY      // not enough
	Device      Status = C.ONNX_TRAIN_DEVICE      // is not there, or failed
	Internal    Status = C.ONNX_TRAIN_INTERNAL    // a bug of the library
)

var statusNames = map[Status]string{Usage: "usage", File: "file", Unsupported: "unsupported", DataError: "data", Memory: "memory",
	Device: "device", Internal: "internal"}

func (s Status) String() string { return nameIn(statusNames, s) }

// Error is a failure of the library, as it says it: errors.As finds it.
type Error struct {
	Status Status
	// "OT1001", which stays the same from version to version; "" for a failure that has none.
	Code string
	// One line that names the node, tensor or file, what was found, and what to do.
	Message string
}

func (e *Error) Error() string { return e.Message }

func usage(format string, arguments ...any) error {
	return &Error{Usage, "", fmt.Sprintf(format, arguments...)}
}
