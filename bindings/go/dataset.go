package onnxtrain

// #include "calls.h"
import "C"

import "runtime"

// Dataset is data files: what the command's --data takes. It does not change, and may outlive the session that it was opened
// for. Files are mapped: do not change them in place while it lives.
type Dataset struct{ handle *C.onnx_train_dataset }

func (c *scope) dataset(f func(to **C.onnx_train_dataset) C.onnx_train_status, keep ...handle) (*Dataset, error) {
	dataset := &Dataset{}
	if err := c.call(func() C.onnx_train_status { return f(&dataset.handle) }, keep...); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(dataset, (*Dataset).Close)
	return dataset, nil
}

// OpenDataset opens the arrays at path that an entry point of the session takes, checked; "": that which trains, or "predict"
// where there is none. Options are those of onnx_train_dataset_open_with. Without a session (nil) it has all arrays of a
// file that names them: .npz, .npy.
func OpenDataset(path string, session *Session, entry string, options Options) (*Dataset, error) {
	var c scope
	defer c.free()
	file := c.text(path)
	given, count := c.options(options)
	var point *C.char
	if entry != "" {
		point = c.text(entry)
	}
	var handle *C.onnx_train_session
	if session != nil {
		handle = session.handle
		session.calls++
	}
	return c.dataset(func(to **C.onnx_train_dataset) C.onnx_train_status {
		return C.onnx_train_dataset_open_with(file, handle, point, given, count, to)
	}, session)
}

// OpenSafetensors has the tensors of a safetensors file and, by Metadata, its texts; there are no samples.
func OpenSafetensors(path string) (*Dataset, error) {
	var c scope
	defer c.free()
	file := c.text(path)
	return c.dataset(func(to **C.onnx_train_dataset) C.onnx_train_status {
		return C.onnx_train_safetensors_open(file, to)
	})
}

// SaveSafetensors writes tensors and texts by name, atomically.
func SaveSafetensors(path string, tensors []Input, texts map[string]string) error {
	var c scope
	defer c.free()
	file := c.text(path)
	array, count := c.inputs(tensors, false)
	metadata := Options{}
	for key, text := range texts {
		metadata[key] = text
	}
	given, numTexts := c.options(metadata)
	return c.call(func() C.onnx_train_status {
		return C.onnx_train_safetensors_save(file, array, count, given, numTexts)
	})
}

// Close frees the dataset, and with it all that has been seen of its memory.
func (d *Dataset) Close() error {
	C.onnx_train_dataset_free(d.handle)
	d.handle = nil
	runtime.SetFinalizer(d, nil)
	return nil
}

func (d *Dataset) open() error {
	if d != nil && d.handle == nil {
		return usage("the dataset is closed")
	}
	return nil
}

func (d *Dataset) holds(uint64) error { return d.open() }

// Arrays gives them in the element types of the file, views of it where that is possible: not to be written to.
func (d *Dataset) Arrays() ([]Tensor, error) {
	var c scope
	var arrays *C.onnx_train_tensor
	var count C.size_t
	if err := c.call(func() C.onnx_train_status {
		return C.onnx_train_dataset_arrays(d.handle, &arrays, &count)
	}, d); err != nil {
		return nil, err
	}
	return tensors(arrays, count, d, 0), nil
}

// Size gives the number of samples, and that of an epoch's batches of batchSize samples; 0: the size that a training takes
// without the option "batch-size".
func (d *Dataset) Size(batchSize int64) (samples, batches int64, err error) {
	var c scope
	var numSamples, numBatches C.int64_t
	err = c.call(func() C.onnx_train_status {
		return C.onnx_train_dataset_size(d.handle, C.int64_t(batchSize), &numSamples, &numBatches)
	}, d)
	return int64(numSamples), int64(numBatches), err
}

// Metadata is what the file says of its arrays.
func (d *Dataset) Metadata() map[string]string {
	entries := map[string]string{}
	var key *C.char
	for i := C.size_t(0); d.handle != nil; i++ {
		value := C.onnx_train_dataset_metadata(d.handle, i, &key)
		if value == nil {
			break
		}
		entries[C.GoString(key)] = C.GoString(value)
	}
	runtime.KeepAlive(d)
	return entries
}
