// Learns digits: builds a training model, trains it, stops in the middle, goes on in another session, exports, predicts.
//
//	go run ./examples/digits ../../models OUT
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"onnxtrain"
)

// NewSession is one of digits_cnn.onnx with loss and optimizer.
func NewSession(models string) (*onnxtrain.Session, error) {
	forward, err := onnxtrain.LoadModel(filepath.Join(models, "digits_cnn.onnx"))
	if err != nil {
		return nil, err
	}
	defer forward.Close()
	training, err := forward.Build(onnxtrain.Options{"loss": "cross_entropy", "optimizer": "adamw"})
	if err != nil {
		return nil, err
	}
	defer training.Close()
	return onnxtrain.NewSession(training, nil)
}

// Fit trains for three epochs, with checkpoints in run, from where a run of that folder was interrupted, if there is one; at
// most until step last, if that is not 0.
func Fit(session *onnxtrain.Session, models, run string, last int64) (onnxtrain.StopReason, error) {
	data, err := onnxtrain.OpenDataset(filepath.Join(models, "data/digits_train.npz"), session, "", nil)
	if err != nil {
		return 0, err
	}
	defer data.Close()
	test, err := onnxtrain.OpenDataset(filepath.Join(models, "data/digits_test.npz"), session, "evaluate", nil)
	if err != nil {
		return 0, err
	}
	defer test.Close()
	return session.Fit(context.Background(), onnxtrain.Training{
		Data:       onnxtrain.Data{Files: data},
		Evaluation: onnxtrain.Data{Files: test},
		Options: onnxtrain.Options{"epochs": 3, "batch-size": 32, "lr": 0.003, "schedule": "cosine", "out": run,
			"resume": true},
		OnStep: func(step onnxtrain.Step) error {
			if step.Step == last {
				return onnxtrain.Interrupt
			}
			return nil
		},
	})
}

// Accuracy is the share of digits of the test data that an inference model tells right.
func Accuracy(model *onnxtrain.Model, models string) (float64, error) {
	session, err := onnxtrain.NewSession(model, nil)
	if err != nil {
		return 0, err
	}
	defer session.Close()
	path := filepath.Join(models, "data/digits_test.npz")
	test, err := onnxtrain.OpenDataset(path, session, "", nil)
	if err != nil {
		return 0, err
	}
	defer test.Close()
	outputs, err := session.Predict(onnxtrain.Data{Files: test}, nil, nil)
	if err != nil {
		return 0, err
	}
	output, err := outputs.Get("logits")
	if err != nil {
		return 0, err
	}
	logits, err := onnxtrain.View[float32](output)
	if err != nil {
		return 0, err
	}
	labels, err := labelsOf(path)
	if err != nil {
		return 0, err
	}
	right, classes := 0, int(output.Shape[1])
	for i, label := range labels {
		row := logits[i*classes : (i+1)*classes]
		isRight := true
		for _, logit := range row {
			isRight = isRight && logit <= row[label]
		}
		if isRight {
			right++
		}
	}
	return float64(right) / float64(len(labels)), nil
}

func labelsOf(path string) ([]int64, error) {
	all, err := onnxtrain.OpenDataset(path, nil, "", nil)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	arrays, err := all.Arrays()
	if err != nil {
		return nil, err
	}
	for _, array := range arrays {
		if array.Name == "labels" {
			return onnxtrain.Copy[int64](array)
		}
	}
	return nil, fmt.Errorf("%s has no labels", path)
}

func run(models, out string) error {
	folder := filepath.Join(out, "run")
	first, err := NewSession(models)
	if err != nil {
		return err
	}
	defer first.Close()
	if _, err = Fit(first, models, folder, 60); err != nil {
		return err
	}
	second, err := NewSession(models)
	if err != nil {
		return err
	}
	defer second.Close()
	if _, err = Fit(second, models, folder, 0); err != nil {
		return err
	}
	trained, err := second.Model()
	if err != nil {
		return err
	}
	defer trained.Close()
	exported, err := trained.Export(nil)
	if err != nil {
		return err
	}
	defer exported.Close()
	if err := exported.Save(filepath.Join(out, "digits.onnx")); err != nil {
		return err
	}
	accuracy, err := Accuracy(exported, models)
	if err == nil {
		fmt.Printf("accuracy: %.3f\n", accuracy)
	}
	return err
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: digits MODELS OUT")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}
