package onnxtrain

// #include "calls.h"
import "C"

import (
	"strings"
	"unsafe"
)

// Options have the names and values of the command `onnx-train`, without the dashes: {"epochs": 4, "no-shuffle": true}. A
// []string gives an option several times. KnownOptions says which there are; the library refuses others.
type Options map[string]any

// KnownOption is an option that the library knows.
type KnownOption struct {
	Name  string
	Type  string // "bool", "integer", "number", "text" or "list"; "|auto" where the word auto is a value, too
	Value string // what its value is
	Text  string // what it does, as the command says it
}

// KnownOptions are those of "build", "forward", "session", "fit", "samples", "data", "check", "export" or "generate".
func KnownOptions(of string) ([]KnownOption, error) {
	var c scope
	defer c.free()
	lines := C.onnx_train_options(c.text(of))
	if lines == nil || c.err != nil {
		return nil, usage("no options are known of %q", of)
	}
	var known []KnownOption
	for _, line := range strings.Split(strings.TrimSpace(C.GoString(lines)), "\n") {
		parts := append(strings.Split(line, "\t"), "", "", "")
		known = append(known, KnownOption{parts[0], parts[1], parts[2], parts[3]})
	}
	return known, nil
}

// Version is the library's, "0.1.0".
func Version() string { return C.GoString(C.onnx_train_version()) }

// LearningRate is that of a step, counted from 0: onnx_train_learning_rate, which has the options.
func LearningRate(step int64, options Options) (float64, error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	var rate C.double
	err := c.call(func() C.onnx_train_status {
		return C.onnx_train_learning_rate(given, count, C.int64_t(step), &rate)
	})
	return float64(rate), err
}

// Split gives the rows of so many samples on which a training with these options trains, and those on which it evaluates.
func Split(samples int, options Options) (training, evaluation []int64, err error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	room := samples
	if room < 1 {
		room = 1
	}
	training, evaluation = make([]int64, room), make([]int64, room)
	var numTraining, numEvaluation C.size_t
	err = c.call(func() C.onnx_train_status {
		return C.onnx_train_split(C.int64_t(samples), given, count, (*C.int64_t)(&training[0]), &numTraining,
			(*C.int64_t)(&evaluation[0]), &numEvaluation)
	})
	return training[:numTraining], evaluation[:numEvaluation], err
}

func list[T any](items *T, count C.size_t) []T { return unsafe.Slice(items, int(count)) }

func texts(names **C.char, count C.size_t) []string {
	var read []string
	for _, name := range list(names, count) {
		read = append(read, C.GoString(name))
	}
	return read
}
