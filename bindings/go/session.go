package onnxtrain

// #include <stdlib.h>
// #include "calls.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Session is a training model's state on a device, and the plans that run it. One goroutine at a time uses it.
type Session struct {
	handle *C.onnx_train_session
	calls  uint64 // those so far, of which the last one's outputs are there
	inside int    // of C, more than one within callbacks
}

// NewSession has a copy of the model. Options are those of onnx_train_session_create: "device", "threads", ...
func NewSession(training *Model, options Options) (*Session, error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	session := &Session{}
	if err := c.call(func() C.onnx_train_status {
		return C.onnx_train_session_create(training.handle, given, count, &session.handle)
	}, training); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(session, (*Session).Close)
	return session, nil
}

// Close frees the session, and with it all that has been seen of its memory. It fails within a callback of the session.
func (s *Session) Close() error {
	if s.inside > 0 {
		return usage("the session is at work: close it when Fit has returned")
	}
	C.onnx_train_session_free(s.handle)
	s.handle = nil
	runtime.SetFinalizer(s, nil)
	return nil
}

func (s *Session) open() error {
	if s != nil && s.handle == nil {
		return usage("the session is closed")
	}
	return nil
}

func (s *Session) holds(call uint64) error {
	if err := s.open(); err != nil {
		return err
	}
	if call != s.calls {
		return usage("the outputs of an earlier call of the session are gone: copy what is needed longer")
	}
	return nil
}

// call is one of C that may end what earlier ones gave; read is one that does not.
func (s *Session) call(c *scope, f func() C.onnx_train_status, keep ...handle) error {
	s.calls++
	return s.read(c, f, keep...)
}

func (s *Session) read(c *scope, f func() C.onnx_train_status, keep ...handle) error {
	s.inside++
	defer func() { s.inside-- }()
	return c.call(f, append(keep, s)...)
}

// Outputs are tensors in the session's memory, until its next call.
type Outputs struct {
	Tensors []Tensor
	ofRole  map[string]string // names by roles
}

// Get gives the output of this name or, if there is none, of this role: "loss" is the loss also where the model has a value of
// its own of that name.
func (o *Outputs) Get(name string) (Tensor, error) {
	for _, wanted := range []string{name, o.ofRole[name]} {
		for _, tensor := range o.Tensors {
			if tensor.Name == wanted {
				return tensor, nil
			}
		}
	}
	return Tensor{}, usage("the run has no output '%s'", name)
}

// Float gives the first element of an output of float32 or float64, such as "loss".
func (o *Outputs) Float(name string) (float64, error) {
	tensor, err := o.Get(name)
	if err != nil {
		return 0, err
	}
	if elements(tensor.Shape) < 1 {
		return 0, usage("output '%s' has no elements", name)
	}
	if tensor.Type == Float64 {
		values, err := Copy[float64](tensor)
		return append(values, 0)[0], err
	}
	values, err := Copy[float32](tensor)
	return float64(append(values, 0)[0]), err
}

// namesOfRoles are those of the outputs of an entry point.
func (s *Session) namesOfRoles(entry string) (map[string]string, error) {
	ports, err := s.Outputs(entry)
	ofRole := map[string]string{}
	for _, port := range ports {
		if port.Role != "" {
			ofRole[port.Role] = port.Name
		}
	}
	return ofRole, err
}

// Run runs an entry point ("step", "evaluate", "predict", "accumulate", "apply"), and then commits its updates of the state: a
// run that fails leaves the state as it was. Inputs are read in place.
func (s *Session) Run(entry string, inputs ...Input) (*Outputs, error) {
	ofRole, err := s.namesOfRoles(entry)
	if err != nil {
		return nil, err
	}
	var c scope
	defer c.free()
	name := c.text(entry)
	array, numInputs := c.inputs(inputs, false)
	var outputs *C.onnx_train_tensor
	var count C.size_t
	if err := s.call(&c, func() C.onnx_train_status {
		return C.onnx_train_session_run(s.handle, name, array, numInputs, &outputs, &count)
	}); err != nil {
		return nil, err
	}
	return &Outputs{tensors(outputs, count, s, s.calls), ofRole}, nil
}

// Port is an input or output of an entry point, or a state.
type Port struct {
	Name string
	// What it is whatever its name is: "learning_rate", "loss", "exp_avg"; "" for the model's own data and weights.
	Role       string
	Of         string // the value that it belongs to; mostly ""
	Type       Type
	Shape      []int64 // -1: a size that the model leaves open; nil: not known
	HasDefault bool    // an input that may be left out
}

func ports(items *C.onnx_train_port, count C.size_t) []Port {
	var read []Port
	for _, port := range list(items, count) {
		read = append(read, Port{C.GoString(port.name), C.GoString(port.role), C.GoString(port.of), Type(port._type),
			sizes(port.shape, port.rank), port.data != nil})
	}
	return read
}

// Entries gives the names of the entry points with outputs, "predict" first.
func (s *Session) Entries() ([]string, error) {
	var c scope
	var names **C.char
	var count C.size_t
	err := s.read(&c, func() C.onnx_train_status { return C.onnx_train_session_entries(s.handle, &names, &count) })
	return texts(names, count), err
}

// Inputs gives those of an entry point, the forward model's first.
func (s *Session) Inputs(entry string) ([]Port, error) {
	var c scope
	defer c.free()
	name := c.text(entry)
	var items *C.onnx_train_port
	var count C.size_t
	err := s.read(&c, func() C.onnx_train_status {
		return C.onnx_train_session_inputs(s.handle, name, &items, &count)
	})
	return ports(items, count), err
}

// Outputs gives those of an entry point.
func (s *Session) Outputs(entry string) ([]Port, error) {
	var c scope
	defer c.free()
	name := c.text(entry)
	var items *C.onnx_train_port
	var count C.size_t
	err := s.read(&c, func() C.onnx_train_status {
		return C.onnx_train_session_outputs(s.handle, name, &items, &count)
	})
	return ports(items, count), err
}

// StatePorts gives the states with role, type and shape: weights, optimizer slots, statistics, keys.
func (s *Session) StatePorts() ([]Port, error) {
	var c scope
	var items *C.onnx_train_port
	var count C.size_t
	err := s.read(&c, func() C.onnx_train_status {
		return C.onnx_train_session_state_ports(s.handle, &items, &count)
	})
	return ports(items, count), err
}

// States gives their names.
func (s *Session) States() ([]string, error) {
	var c scope
	var names **C.char
	var count C.size_t
	err := s.read(&c, func() C.onnx_train_status { return C.onnx_train_session_states(s.handle, &names, &count) })
	return texts(names, count), err
}

// Scale is what the model's preprocessing multiplies the data of an input by: onnx_train_session_scale.
func (s *Session) Scale(input string) (float64, error) {
	var c scope
	defer c.free()
	name := c.text(input)
	var scale C.double
	err := s.read(&c, func() C.onnx_train_status { return C.onnx_train_session_scale(s.handle, name, &scale) })
	return float64(scale), err
}

// SampleAxis is that along which an input of an entry point holds its samples.
func (s *Session) SampleAxis(entry, input string) (int, error) {
	var c scope
	defer c.free()
	point, name := c.text(entry), c.text(input)
	var axis C.int32_t
	err := s.read(&c, func() C.onnx_train_status {
		return C.onnx_train_session_sample_axis(s.handle, point, name, &axis)
	})
	return int(axis), err
}

// Plan is what a run of an entry point executes.
type Plan struct {
	Text string // what `onnx-train show --plan` prints: a line a node
	JSON string // what it prints with --json
	// Bytes of gradients and activations at their peak, workspace included; of that, workspace; of constants. The state
	// comes on top.
	ArenaBytes, WorkspaceBytes, ConstantBytes uint64
}

// Plan gives that of an entry point. Options: "batch", "dim". It is made if there is none for these sizes; nothing runs.
func (s *Session) Plan(entry string, options Options) (*Plan, error) {
	var c scope
	defer c.free()
	name := c.text(entry)
	given, count := c.options(options)
	plan := (*C.onnx_train_plan)(c.alloc(1, unsafe.Sizeof(C.onnx_train_plan{})))
	if err := s.call(&c, func() C.onnx_train_status {
		return C.onnx_train_session_plan(s.handle, name, given, count, plan)
	}); err != nil {
		return nil, err
	}
	return &Plan{C.GoString(plan.text), C.GoString(plan.json), uint64(plan.arena_bytes), uint64(plan.workspace_bytes),
		uint64(plan.constant_bytes)}, nil
}

func (s *Session) described(name string) (kind Type, shape []int64, err error) {
	var c scope
	defer c.free()
	text := c.text(name)
	state := (*C.onnx_train_tensor)(c.alloc(1, unsafe.Sizeof(C.onnx_train_tensor{})))
	err = s.read(&c, func() C.onnx_train_status { return C.onnx_train_session_state(s.handle, text, state) })
	if err == nil {
		kind, shape = Type(state._type), sizes(state.shape, state.rank)
	}
	return kind, shape, err
}

func countOf[T Number](s *Session, name string) (int, error) {
	kind, shape, err := s.described(name)
	if err == nil && !standsFor[T](kind) {
		err = usage("state '%s' has elements of type %v, not %v", name, kind, typeOf[T]())
	}
	return elements(shape), err
}

// Address is that of a state in the memory of the session's device, fixed as long as the session lives, and whether that is
// memory of the host. Nil where another rank keeps the state.
func (s *Session) Address(name string) (address unsafe.Pointer, onHost bool, err error) {
	var c scope
	defer c.free()
	text := c.text(name)
	var isOnHost C.int32_t
	err = s.read(&c, func() C.onnx_train_status {
		return C.onnx_train_session_address(s.handle, text, &address, &isOnHost)
	})
	return address, isOnHost != 0, err
}

// State gives the values of a state where the session keeps them: to be read and written between calls, until Close. It
// fails unless its elements are of type T, and where the device has memory of its own.
func State[T Number](s *Session, name string) ([]T, error) {
	count, err := countOf[T](s, name)
	if err != nil {
		return nil, err
	}
	address, onHost, err := s.Address(name)
	if err == nil && (!onHost || address == nil) {
		err = &Error{Device, "", "state '" + name + "' is not in the host's memory: copy it"}
	}
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(address), count), nil
}

// GetState gives a copy of a state. It fails unless its elements are of type T.
func GetState[T Number](s *Session, name string) ([]T, error) {
	count, err := countOf[T](s, name)
	if err != nil {
		return nil, err
	}
	var c scope
	defer c.free()
	text := c.text(name)
	values := make([]T, count+1) // also of none an address
	err = s.read(&c, func() C.onnx_train_status {
		bytes := C.size_t(count) * C.size_t(unsafe.Sizeof(values[0]))
		return C.onnx_train_session_get(s.handle, text, unsafe.Pointer(&values[0]), bytes)
	})
	return values[:count:count], err
}

// SetState gives a state other values, as many as it has. It fails unless its elements are of type T.
func SetState[T Number](s *Session, name string, values []T) error {
	if _, err := countOf[T](s, name); err != nil {
		return err
	}
	var c scope
	defer c.free()
	text := c.text(name)
	count := len(values)
	if count == 0 {
		values = make([]T, 1) // of none an address, too
	}
	return s.call(&c, func() C.onnx_train_status {
		bytes := C.size_t(count) * C.size_t(unsafe.Sizeof(values[0]))
		return C.onnx_train_session_set(s.handle, text, unsafe.Pointer(&values[0]), bytes)
	})
}

// SetStateFromDevice sets a state from so many bytes in the memory of the session's device.
func (s *Session) SetStateFromDevice(name string, data unsafe.Pointer, bytes int) error {
	var c scope
	defer c.free()
	text := c.text(name)
	return s.call(&c, func() C.onnx_train_status {
		return C.onnx_train_session_set_from_device(s.handle, text, data, C.size_t(bytes))
	})
}

// DeviceInfo says where the tensors of a session are, in the numbers of DLPack.
type DeviceInfo struct {
	Type   int            // DLDeviceType: 1 is the host, 2 is CUDA
	ID     int            // number among the devices of its type
	Stream unsafe.Pointer // on which the session's work runs: a cudaStream_t on CUDA, nil where the device has none
}

// Device says where the tensors are.
func (s *Session) Device() (DeviceInfo, error) {
	var c scope
	defer c.free()
	device := (*C.onnx_train_device)(c.alloc(1, unsafe.Sizeof(C.onnx_train_device{})))
	err := s.read(&c, func() C.onnx_train_status { return C.onnx_train_session_device(s.handle, device) })
	return DeviceInfo{int(device._type), int(device.id), device.stream}, err
}

// Ranks gives this process's number among those that train together, and how many they are: 0 and 1 without ranks.
func (s *Session) Ranks() (rank, ranks int, err error) {
	var c scope
	var number, count C.int32_t
	err = s.read(&c, func() C.onnx_train_status { return C.onnx_train_session_ranks(s.handle, &number, &count) })
	return int(number), int(count), err
}

// SwapState exchanges the values of a state with those of the state of this name in another session.
func (s *Session) SwapState(other *Session, name string) error {
	var c scope
	defer c.free()
	text := c.text(name)
	return s.call(&c, func() C.onnx_train_status {
		return C.onnx_train_session_swap(s.handle, other.handle, text)
	}, other)
}

// LoadAdapter reads an adapter in PEFT's format, and keeps it under a name.
func (s *Session) LoadAdapter(name, folder string) error {
	var c scope
	defer c.free()
	text, path := c.text(name), c.text(folder)
	return s.call(&c, func() C.onnx_train_status { return C.onnx_train_session_load_adapter(s.handle, text, path) })
}

// SetAdapter gives the states the values of the adapter of this name.
func (s *Session) SetAdapter(name string) error {
	var c scope
	defer c.free()
	text := c.text(name)
	return s.call(&c, func() C.onnx_train_status { return C.onnx_train_session_set_adapter(s.handle, text) })
}

// Initialize begins anew: onnx_train_session_initialize.
func (s *Session) Initialize(seed uint64) error {
	var c scope
	return s.call(&c, func() C.onnx_train_status { return C.onnx_train_session_initialize(s.handle, C.uint64_t(seed)) })
}

// Model is the training model with the present state: save it for a checkpoint, export it for inference.
func (s *Session) Model() (*Model, error) {
	var c scope
	var handle *C.onnx_train_model
	if err := s.read(&c, func() C.onnx_train_status { return C.onnx_train_session_model(s.handle, &handle) }); err != nil {
		return nil, err
	}
	return newModel(handle), nil
}
