package main

import (
	"fmt"
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

// The bits of a state: a weight, a number of steps, the key of random numbers.
func bits(t *testing.T, session *onnxtrain.Session, name string) string {
	if values, err := onnxtrain.State[float32](session, name); err == nil {
		text := ""
		for _, value := range values {
			text += fmt.Sprintf("%08x", math.Float32bits(value))
		}
		return text
	}
	if values, err := onnxtrain.State[int64](session, name); err == nil {
		return fmt.Sprint(values)
	}
	values, err := onnxtrain.State[uint64](session, name)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(values)
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
		if bits(t, whole, name) != bits(t, resumed, name) {
			t.Fatalf("%s is not the same", name)
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
