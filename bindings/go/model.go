// Package onnxtrain trains ONNX models: a forward model becomes a training model, a session runs it. It is a layer over the
// C interface, onnx_train.h, which has all contracts and the options.
//
// Models, sessions, datasets and buffers hold memory of C. Close frees it at once, the garbage collector when nothing refers
// to them any more. Slices that View and State give are in that memory, and end with it: keep the object, as
// `defer session.Close()` does. Models and datasets may be used by several goroutines at once, a session by one at a time.
//
// Callbacks give nil, Stop, Interrupt or an error, which ends the training and is what Fit gives. That of Generate may give
// EndText, too. A panic of one goes on after the library has returned. They must not call runtime.Goexit (t.Fatal of tests
// does).
package onnxtrain

// #include <stdlib.h>
// #include "calls.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Model is a forward model, a training model or a checkpoint. It does not change.
type Model struct{ handle *C.onnx_train_model }

func newModel(handle *C.onnx_train_model) *Model {
	model := &Model{handle}
	runtime.SetFinalizer(model, (*Model).Close)
	return model
}

// Close frees the model; sessions of it go on. Another call of a closed model is an error.
func (m *Model) Close() error {
	C.onnx_train_model_free(m.handle)
	m.handle = nil
	runtime.SetFinalizer(m, nil)
	return nil
}

func (m *Model) open() error {
	if m != nil && m.handle == nil {
		return usage("the model is closed")
	}
	return nil
}

// model gives what f makes.
func (c *scope) model(f func(to **C.onnx_train_model) C.onnx_train_status, keep ...handle) (*Model, error) {
	var handle *C.onnx_train_model
	if err := c.call(func() C.onnx_train_status { return f(&handle) }, keep...); err != nil {
		return nil, err
	}
	return newModel(handle), nil
}

// LoadModel reads an .onnx file; its large tensors are mapped, so the file must not be changed in place while the model
// lives.
func LoadModel(path string) (*Model, error) {
	var c scope
	defer c.free()
	file := c.text(path)
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status { return C.onnx_train_model_load(file, to) })
}

// ModelFromBytes is the same from memory, which is copied. The model must hold all its data.
func ModelFromBytes(data []byte) (*Model, error) {
	var c scope
	defer c.free()
	count := len(data)
	if count == 0 {
		data = make([]byte, 1) // of none an address, too
	}
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_from_bytes(unsafe.Pointer(&data[0]), C.size_t(count), to)
	})
}

// Save writes the model atomically: an existing file is complete and old, or complete and new.
func (m *Model) Save(path string) error {
	var c scope
	defer c.free()
	file := c.text(path)
	return c.call(func() C.onnx_train_status { return C.onnx_train_model_save(m.handle, file) }, m)
}

// Bytes gives the serialized model, at most 2 GiB.
func (m *Model) Bytes() ([]byte, error) {
	var c scope
	var data unsafe.Pointer
	var count C.size_t
	if err := c.call(func() C.onnx_train_status {
		return C.onnx_train_model_to_bytes(m.handle, &data, &count)
	}, m); err != nil {
		return nil, err
	}
	defer C.onnx_train_free(data)
	return append([]byte(nil), unsafe.Slice((*byte)(data), int(count))...), nil
}

// Metadata has "onnx_train.loss", "onnx_train.optimizer" and others.
func (m *Model) Metadata() map[string]string {
	entries := map[string]string{}
	var key *C.char
	for i := C.size_t(0); m.handle != nil; i++ {
		value := C.onnx_train_model_metadata(m.handle, i, &key)
		if value == nil {
			break
		}
		entries[C.GoString(key)] = C.GoString(value)
	}
	runtime.KeepAlive(m)
	return entries
}

// Build makes a training model: loss, gradients, optimizer and their state. Options are those of `onnx-train build`.
func (m *Model) Build(options Options) (*Model, error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_build(m.handle, given, count, to)
	}, m)
}

// BuildWithLoss is the same with a loss that is a model: onnx_train_model_build_with_loss.
func (m *Model) BuildWithLoss(loss *Model, options Options) (*Model, error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_build_with_loss(m.handle, loss.handle, given, count, to)
	}, m, loss)
}

// BuildForFile is Build for the data of a file, which choose the loss where options have none. The text says what has been
// chosen, and why.
func (m *Model) BuildForFile(path string, options Options) (*Model, string, error) {
	var c scope
	defer c.free()
	return m.buildForData(&c, c.text(path), nil, options)
}

// BuildForArrays is the same for arrays.
func (m *Model) BuildForArrays(arrays []Input, options Options) (*Model, string, error) {
	var c scope
	defer c.free()
	return m.buildForData(&c, nil, arrays, options)
}

func (m *Model) buildForData(c *scope, path *C.char, arrays []Input, options Options) (*Model, string, error) {
	array, numArrays := c.inputs(arrays, false)
	given, count := c.options(options)
	var text string
	model, err := c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		var note *C.char
		status := C.onnx_train_model_build_for_data(m.handle, path, array, numArrays, given, count, to, &note)
		if status == C.ONNX_TRAIN_OK {
			text = C.GoString(note)
		}
		return status
	}, m)
	return model, text, err
}

// Sizes gives those that the model leaves open and the arrays have, for the option "dim"; "" where there are none.
func (m *Model) Sizes(arrays []Input) (string, error) {
	var c scope
	defer c.free()
	array, count := c.inputs(arrays, false)
	var text string
	err := c.call(func() C.onnx_train_status {
		var sizes *C.char
		status := C.onnx_train_model_sizes(m.handle, array, count, &sizes)
		if status == C.ONNX_TRAIN_OK {
			text = C.GoString(sizes)
		}
		return status
	}, m)
	return text, err
}

// Export gives the inference model alone: no training entry points, no state but the weights. Options are those of
// `onnx-train export`; nil: none.
func (m *Model) Export(options Options) (*Model, error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_export_with(m.handle, given, count, to)
	}, m)
}

// ExportInto writes the model or the folder of the option "into" with trained weights to path: onnx_train_model_export_into.
// What was written, guessed or left out is the text, in lines.
func (m *Model) ExportInto(path string, options Options) (string, error) {
	var c scope
	defer c.free()
	file := c.text(path)
	given, count := c.options(options)
	var text string
	err := c.call(func() C.onnx_train_status {
		var note *C.char
		status := C.onnx_train_model_export_into(m.handle, given, count, file, &note)
		if status == C.ONNX_TRAIN_OK {
			text = C.GoString(note)
		}
		return status
	}, m)
	return text, err
}

// SaveAdapter writes the adapters of a training model into a folder as PEFT has them, or a file NAME.onnx_adapter.
func (m *Model) SaveAdapter(folder string) error {
	var c scope
	defer c.free()
	path := c.text(folder)
	return c.call(func() C.onnx_train_status { return C.onnx_train_model_save_adapter(m.handle, path) }, m)
}

// Flatten gives one entry point as a plain ONNX model: each state is an input, its next value an output.
func (m *Model) Flatten(entry string) (*Model, error) {
	var c scope
	defer c.free()
	name := c.text(entry)
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_flatten(m.handle, name, to)
	}, m)
}

// Differentiate gives the forward and the backward pass as two models: onnx_train_model_differentiate.
func (m *Model) Differentiate(options Options) (forward, backward *Model, err error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	var back *C.onnx_train_model
	forward, err = c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_differentiate(m.handle, given, count, to, &back)
	}, m)
	if err != nil {
		return nil, nil, err
	}
	return forward, newModel(back), nil
}

// Derivative ("gradient", "vjp", "jvp", "hvp", "outputs") as a model: onnx_train_model_derivative. loss may be nil.
func (m *Model) Derivative(kind string, loss *Model, options Options) (*Model, error) {
	var c scope
	defer c.free()
	name := c.text(kind)
	given, count := c.options(options)
	var lossHandle *C.onnx_train_model
	if loss != nil {
		lossHandle = loss.handle
	}
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_derivative(m.handle, name, lossHandle, given, count, to)
	}, m, loss)
}

// WithWeights gives a copy with other weights, by the names of initializers. A name that the model does not have is an error
// if strict, else left out.
func (m *Model) WithWeights(weights []Input, strict bool) (*Model, error) {
	var c scope
	defer c.free()
	array, count := c.inputs(weights, false)
	isStrict := C.int32_t(0)
	if strict {
		isStrict = 1
	}
	return c.model(func(to **C.onnx_train_model) C.onnx_train_status {
		return C.onnx_train_model_with_weights(m.handle, array, count, isStrict, to)
	}, m)
}

// Finding is what was found in a model: an obstacle to its training, or something worth knowing.
type Finding struct {
	Subject string // a node, a weight, a part of the work
	What    string
	Advice  string // what to do; may be ""
}

func findings(items *C.onnx_train_finding, count C.size_t) []Finding {
	var read []Finding
	for _, item := range list(items, count) {
		read = append(read, Finding{C.GoString(item.subject), C.GoString(item.what), C.GoString(item.advice)})
	}
	return read
}

// Notes say what was guessed, left out or changed when this training model was built.
func (m *Model) Notes() []Finding {
	var notes *C.onnx_train_finding
	count := C.onnx_train_model_notes(m.handle, &notes)
	read := findings(notes, count)
	runtime.KeepAlive(m)
	return read
}

// Report says whether a forward model can be trained.
type Report struct {
	Text      string    // what the command prints
	Loss      string    // the expression of the loss that the model was tried with
	Failure   string    // why the model cannot be trained, in one line; "" when it can
	Obstacles []Finding // what is in the way of training
	Findings  []Finding // what is worth knowing besides
}

// Check looks for everything that is in the way of training. Options are those of `onnx-train check`. It succeeds for a
// model that cannot be trained, too.
func (m *Model) Check(options Options) (*Report, error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	var report *C.onnx_train_report
	if err := c.call(func() C.onnx_train_status {
		return C.onnx_train_model_check(m.handle, given, count, &report)
	}, m); err != nil {
		return nil, err
	}
	defer C.onnx_train_report_free(report)
	var obstacles, others *C.onnx_train_finding
	numObstacles := C.onnx_train_report_obstacles(report, &obstacles)
	numOthers := C.onnx_train_report_findings(report, &others)
	return &Report{
		Text:      C.GoString(C.onnx_train_report_text(report)),
		Loss:      C.GoString(C.onnx_train_report_loss(report)),
		Failure:   C.GoString(C.onnx_train_report_failure(report)),
		Obstacles: findings(obstacles, numObstacles),
		Findings:  findings(others, numOthers),
	}, nil
}
