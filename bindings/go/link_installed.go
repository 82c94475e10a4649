//go:build onnx_train_installed

package onnxtrain

// #cgo pkg-config: onnx_train
import "C"
