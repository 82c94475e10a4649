package onnxtrain

// #include "calls.h"
import "C"

import (
	"runtime"
	"runtime/cgo"
	"unsafe"
)

type writing struct {
	running
	texts   [][]int64
	onToken func(text int, token int64) error
}

// Generate gives the tokens that a causal language model writes after each prompt: onnx_train_generate, which has the
// options. onToken, which may be nil, is called with the number of the text and each token that is drawn; EndText completes
// this text, and Stop ends all.
func (s *Session) Generate(prompts [][]int64, options Options, onToken func(text int, token int64) error) ([][]int64, error) {
	var c scope
	defer c.free()
	given, count := c.options(options)
	begins := (**C.int64_t)(c.alloc(len(prompts), unsafe.Sizeof(uintptr(0))))
	lengths := (*C.size_t)(c.alloc(len(prompts), unsafe.Sizeof(C.size_t(0))))
	for i, prompt := range prompts {
		copied := (*C.int64_t)(c.alloc(len(prompt), 8))
		for j, token := range prompt {
			unsafe.Slice(copied, len(prompt))[j] = C.int64_t(token)
		}
		unsafe.Slice(begins, len(prompts))[i] = copied
		unsafe.Slice(lengths, len(prompts))[i] = C.size_t(len(prompt))
	}
	w := &writing{texts: make([][]int64, len(prompts)), onToken: onToken}
	user := cgo.NewHandle(w)
	defer user.Delete()
	err := s.call(&c, func() C.onnx_train_status {
		return C.onnxtrain_generate(s.handle, begins, lengths, C.size_t(len(prompts)), given, count, C.uintptr_t(user))
	})
	if w.panicked {
		panic(w.panics)
	}
	if w.err != nil {
		err = w.err
	}
	return w.texts, err
}

//export onnxtrainOnToken
func onnxtrainOnToken(user C.uintptr_t, text C.size_t, token C.int64_t) C.onnx_train_next {
	w := cgo.Handle(user).Value().(*writing)
	return w.guard(func() error {
		w.texts[text] = append(w.texts[text], int64(token))
		if w.onToken == nil {
			return nil
		}
		return w.onToken(int(text), int64(token))
	})
}

// GenerateNote says why the last Generate was not as fast as it is with a cache; "" if it was.
func (s *Session) GenerateNote() string {
	if s.handle == nil {
		return ""
	}
	note := C.GoString(C.onnx_train_generate_note(s.handle))
	runtime.KeepAlive(s)
	return note
}
