package onnxtrain_test

import (
	"context"
	"log"

	"onnxtrain"
)

// What docs/languages.md shows.
func Example() {
	ctx := context.Background()
	forward, err := onnxtrain.LoadModel("models/digits_cnn.onnx")
	training, err := forward.Build(onnxtrain.Options{"loss": "cross_entropy", "optimizer": "adamw"})
	session, err := onnxtrain.NewSession(training, nil)
	defer session.Close()
	data, err := onnxtrain.OpenDataset("models/data/digits_train.npz", session, "", nil)
	reason, err := session.Fit(ctx, onnxtrain.Training{
		Data:    onnxtrain.Data{Files: data},
		Options: onnxtrain.Options{"epochs": 4, "lr": 0.003},
	})
	log.Print(reason, err)
}
