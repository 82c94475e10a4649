//go:build !onnx_train_installed

package onnxtrain

// #cgo CFLAGS: -I${SRCDIR}/../../include
// #cgo LDFLAGS: -L${SRCDIR}/../../build -lonnx_train -Wl,-rpath,${SRCDIR}/../../build
import "C"
