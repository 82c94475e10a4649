//go:build !onnx_train_installed

package onnxtrain

// The library of the checkout's build/, unless CGO_CFLAGS and CGO_LDFLAGS name another folder before.

// #cgo CFLAGS: -I${SRCDIR}/../../include
// #cgo LDFLAGS: -L${SRCDIR}/../../build -lonnx_train -Wl,-rpath,${SRCDIR}/../../build
// #if !__has_include(<../build/libonnx_train.so>) && !__has_include(<libonnx_train.so>)
// #error "libonnx_train.so is not in the checkout's build/: go build -tags onnx_train_installed takes that of pkg-config, CGO_CFLAGS=-I$DIR CGO_LDFLAGS='-L$DIR -Wl,-rpath,$DIR' that of another folder"
// #endif
import "C"
