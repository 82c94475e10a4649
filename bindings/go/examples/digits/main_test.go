package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"onnxtrain"
)

const models = "../../../../models"

func fit(t *testing.T, run string, last int64, reason onnxtrain.StopReason) *onnxtrain.Session {
	session, err := NewSession(models)
	if err != nil {
		t.Fatal(err)
	}
	if ended, err := Fit(session, models, run, last); err != nil || ended != reason {
		t.Fatal(ended, err)
	}
	return session
}

// The bits of a state.
func bits(t *testing.T, session *onnxtrain.Session, name string) []uint64 {
	var read []uint64
	if values, err := onnxtrain.State[float32](session, name); err == nil {
		for _, value := range values {
			read = append(read, uint64(math.Float32bits(value)))
		}
		return read
	}
	values, err := onnxtrain.State[int64](session, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range values {
		read = append(read, uint64(value))
	}
	return read
}

func TestAResumedTrainingEqualsOneThatWasNotInterruptedToTheBit(t *testing.T) {
	folder := t.TempDir()
	whole := fit(t, filepath.Join(folder, "whole"), 0, onnxtrain.Finished)
	defer whole.Close()
	fit(t, filepath.Join(folder, "run"), 60, onnxtrain.Interrupted).Close()
	resumed := fit(t, filepath.Join(folder, "run"), 0, onnxtrain.Finished)
	defer resumed.Close()
	states, err := whole.States()
	if err != nil || len(states) <= 20 {
		t.Fatal(states, err)
	}
	for _, name := range states {
		one, other := bits(t, whole, name), bits(t, resumed, name)
		if len(one) != len(other) {
			t.Fatal(name)
		}
		for i := range one {
			if one[i] != other[i] {
				t.Fatalf("element %d of %s is not the same", i, name)
			}
		}
	}
}

func TestTheExampleLearnsDigits(t *testing.T) {
	folder := t.TempDir()
	if err := run(models, folder); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, "run", "best.onnx")); err != nil {
		t.Fatal(err)
	}
	exported, err := onnxtrain.LoadModel(filepath.Join(folder, "digits.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	if accuracy, err := Accuracy(exported, models); err != nil || accuracy <= 0.95 {
		t.Fatal(accuracy, err)
	}
}
