// Makes sessions that train for a step, see weights and fail, so that a tool can look for leaks: sessions MODEL COUNT.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"strconv"

	"onnxtrain"
)

// useASession makes one of MODEL, tests/fixtures/mlp.onnx, from its file to its end. closes: frees what it makes itself.
func useASession(path string, closes bool) error {
	forward, err := onnxtrain.LoadModel(path)
	if err != nil {
		return err
	}
	training, err := forward.Build(onnxtrain.Options{"loss": "cross_entropy", "optimizer": "adamw"})
	if err != nil {
		return err
	}
	session, err := onnxtrain.NewSession(training, nil)
	if err != nil {
		return err
	}
	if closes {
		defer forward.Close()
		defer training.Close()
		defer session.Close()
	}
	data := []onnxtrain.Input{
		onnxtrain.NewInput("x", []int64{8, 4}, make([]float32, 32)),
		onnxtrain.NewInput("labels", []int64{8}, make([]int64, 8)),
	}
	if _, err := session.Run("step", data...); err != nil {
		return err
	}
	if _, err := session.Run("step"); err == nil {
		return errors.New("a run without inputs succeeds")
	}
	states, err := session.States()
	if err != nil {
		return err
	}
	weight, err := onnxtrain.State[float32](session, states[0])
	if err != nil {
		return err
	}
	weight[0]++
	if _, err := session.Fit(context.Background(), onnxtrain.Training{
		Data:    onnxtrain.Data{Arrays: data},
		Options: onnxtrain.Options{"epochs": 1, "batch-size": 4},
		OnStep:  func(onnxtrain.Step) error { return nil },
	}); err != nil {
		return err
	}
	trained, err := session.Model()
	if err != nil {
		return err
	}
	if closes {
		defer trained.Close()
	}
	_, err = trained.Bytes()
	return err
}

func main() {
	count, err := strconv.Atoi(os.Args[2])
	for ; count > 0 && err == nil; count-- {
		err = useASession(os.Args[1], true)
	}
	if err != nil {
		log.Fatal(err)
	}
}
