package onnxtrain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const (
	mlpPath = "../../tests/fixtures/mlp.onnx"
	digits  = "../../models/digits_cnn.onnx"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// fails says whether err is one of the library of this kind.
func fails(t *testing.T, err error, status Status) {
	t.Helper()
	var failure *Error
	if !errors.As(err, &failure) || failure.Status != status {
		t.Fatalf("%v is no error of status %d", err, status)
	}
}

func equal(t *testing.T, one, other any) {
	t.Helper()
	if !reflect.DeepEqual(one, other) {
		t.Fatalf("%v is not %v", one, other)
	}
}

func built() *Model {
	options := Options{"loss": "cross_entropy", "optimizer": "sgd(momentum=0.9)"}
	return must(must(LoadModel(mlpPath)).Build(options))
}

func newSession(t *testing.T) *Session {
	session := must(NewSession(built(), nil))
	t.Cleanup(func() { session.Close() })
	return session
}

func batch() []Input {
	x, labels := make([]float32, 8*4), make([]int64, 8)
	for i := range x {
		x[i] = float32(i%5) / 5
	}
	for i := range labels {
		labels[i] = int64(i % 3)
	}
	return []Input{NewInput("x", []int64{8, 4}, x), NewInput("labels", []int64{8}, labels)}
}

// closed says whether err is the line of a closed object.
func closed(t *testing.T, what string, err error) {
	t.Helper()
	fails(t, err, Usage)
	equal(t, err.Error(), "the "+what+" is closed")
}

func TestClosedObjectsSayWhichTheyAre(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.safetensors")
	if err := SaveSafetensors(path, batch(), nil); err != nil {
		t.Fatal(err)
	}
	model, session, data, ctx := built(), newSession(t), must(OpenSafetensors(path)), context.Background()
	forward := must(LoadModel(mlpPath))
	array := must(data.Arrays())[0]
	data.Close()
	_, err := data.Arrays()
	closed(t, "dataset", err)
	_, _, err = data.Size(1)
	closed(t, "dataset", err)
	_, err = View[int64](array)
	closed(t, "dataset", err)
	_, err = session.Fit(ctx, Training{Data: Data{Files: data}, Options: oneEpoch})
	closed(t, "dataset", err)
	_, err = session.Fit(ctx, Training{Data: Data{Arrays: batch()}, Evaluation: Data{Files: data}, Options: oneEpoch})
	closed(t, "dataset", err)
	session.Close()
	_, err = session.States()
	closed(t, "session", err)
	_, err = session.Run("step", batch()...)
	closed(t, "session", err)
	closed(t, "session", newSession(t).SwapState(session, "fc2.bias"))
	_, err = OpenDataset(path, session, "", nil) // not one without a session
	closed(t, "session", err)
	model.Close()
	_, err = NewSession(model, nil)
	closed(t, "model", err)
	closed(t, "model", model.Save(path))
	_, err = forward.BuildWithLoss(model, nil)
	closed(t, "model", err)
	_, err = forward.Derivative("gradient", model, nil) // not one without a loss
	closed(t, "model", err)
}

func TestConstantsHaveNames(t *testing.T) {
	equal(t, fmt.Sprint(Usage, DataError, Finished, EarlyStop, Float16, Bool, Status(99), StopReason(99)),
		"usage data finished early-stop float16 bool 99 99")
}

var oneEpoch = Options{"epochs": 1, "batch-size": 4, "lr": 0.1}

func TestErrorsHaveTheTextTheStatusAndTheCodeOfTheLibrary(t *testing.T) {
	model := must(LoadModel(digits))
	training := must(model.Build(Options{"loss": "cross_entropy", "optimizer": "adamw"}))
	session := must(NewSession(training, nil))
	defer session.Close()
	var said []string
	says := func(call string, err error) {
		var failure *Error
		if !errors.As(err, &failure) {
			t.Fatal(call, err)
		}
		said = append(said, fmt.Sprintf("%s\t%d\t%s\t%s", call, failure.Status, failure.Code, err))
	}
	_, err := LoadModel("no_such_file.onnx")
	says("load", err)
	_, err = model.Build(Options{"loss": "no_such_loss"})
	says("build", err)
	_, err = NewSession(training, Options{"speed": 1})
	says("session", err)
	_, err = session.Run("step")
	says("run", err)
	var expected []string
	for _, line := range strings.Split(strings.TrimSpace(string(must(os.ReadFile("../errors.txt")))), "\n") {
		if !strings.HasPrefix(line, "#") {
			expected = append(expected, line)
		}
	}
	equal(t, said, expected)
}

func TestModelsAreBuiltChangedAndWritten(t *testing.T) {
	forward, folder := must(LoadModel(mlpPath)), t.TempDir()
	bytes := must(forward.Bytes())
	equal(t, must(must(ModelFromBytes(bytes)).Bytes()), bytes)
	_, err := ModelFromBytes([]byte("no model"))
	fails(t, err, File)
	_, err = ModelFromBytes(nil)
	fails(t, err, File)
	_, err = LoadModel("a\x00b")
	fails(t, err, Usage)
	training := built()
	if !strings.Contains(training.Metadata()["onnx_train.loss"], "cross_entropy") || len(training.Notes()) > 0 {
		t.Fatal(training.Metadata(), training.Notes())
	}
	if err := must(training.Export(nil)).Save(filepath.Join(folder, "inference.onnx")); err != nil {
		t.Fatal(err)
	}
	must(training.Flatten("step"))
	_, err = training.Flatten("stp")
	fails(t, err, Usage)
	fails(t, forward.SaveAdapter(filepath.Join(folder, "adapter")), File)
	weights := func(name string) []Input { return []Input{NewInput(name, []int64{3}, []float64{1, 1, 1})} }
	changed := must(forward.WithWeights(weights("fc2.bias"), true))
	_, err = changed.WithWeights(weights("fc9"), true)
	fails(t, err, DataError)
	must(changed.WithWeights(weights("fc9"), false))
	trained := must(changed.Build(Options{"loss": "cross_entropy", "optimizer": "sgd"}))
	served := filepath.Join(folder, "served.onnx")
	text, err := trained.ExportInto(served, Options{"into": mlpPath})
	if err != nil || !strings.Contains(text, "trained weights in") || must(os.Stat(served)).Size() == 0 {
		t.Fatal(text, err)
	}
	_, err = trained.ExportInto(served, nil)
	fails(t, err, Usage)
	_, note, err := forward.BuildForArrays(batch(), nil)
	if err != nil || !strings.HasPrefix(note, "loss cross_entropy") {
		t.Fatal(note, err)
	}
	_, _, err = forward.BuildForFile("no/data.npz", nil)
	fails(t, err, File)
	equal(t, must(forward.Sizes(batch()[:1])), "")
	_, err = forward.BuildWithLoss(forward, nil)
	fails(t, err, Unsupported)
	pass, back, err := forward.Differentiate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []*Model{pass, back} {
		equal(t, must(must(NewSession(model, nil)).Entries()), []string{"predict"})
	}
	must(forward.Derivative("gradient", nil, Options{"loss": "cross_entropy"}))
	report := must(forward.Check(nil))
	if !strings.Contains(report.Text, "It can be trained") || report.Failure != "" || len(report.Obstacles) > 0 {
		t.Fatal(report)
	}
	forward.Close()
	_, err = forward.Bytes()
	fails(t, err, Usage)
	equal(t, len(forward.Metadata())+len(forward.Notes()), 0)
}

func TestOptionsAreDescribedAndRefused(t *testing.T) {
	found := false
	for _, option := range must(KnownOptions("fit")) {
		found = found || option.Name == "epochs" && option.Type == "integer" && option.Text != ""
	}
	equal(t, found, true)
	_, err := KnownOptions("nothing")
	fails(t, err, Usage)
	equal(t, must(LearningRate(0, Options{"lr": 0.5, "schedule": "linear", "steps": 4, "warmup": 2})), 0.25)
	training, evaluation, err := Split(10, Options{"val-split": 0.2})
	if err != nil || len(training) != 8 || len(evaluation) != 2 {
		t.Fatal(training, evaluation, err)
	}
	_, _, err = Split(0, nil)
	fails(t, err, Usage)
	must(must(LoadModel(mlpPath)).Build(Options{"loss": "cross_entropy", "freeze": []string{"fc1.weight", "fc1.bias"}}))
	fit := func(options Options) error {
		_, err := newSession(t).Fit(context.Background(), Training{Data: Data{Arrays: batch()}, Options: options})
		return err
	}
	fails(t, fit(Options{"epochs": 1, "speed": 3}), Usage)
	fails(t, fit(Options{"ep\x00chs": 1}), Usage)
	fails(t, fit(nil), Usage)
}

func TestRunsReadInputsInPlaceAndGiveViews(t *testing.T) {
	session := newSession(t)
	outputs := must(session.Run("step", batch()...))
	if loss := must(outputs.Float("loss")); loss <= 0 {
		t.Fatal(loss)
	}
	_, err := outputs.Get("no such output")
	fails(t, err, Usage)
	loss := must(outputs.Get("loss"))
	_, err = View[int64](loss)
	fails(t, err, Usage)
	equal(t, err.Error(), "tensor 'loss' has elements of type float32, not int64")
	before := append([]float32(nil), must(State[float32](session, "fc2.bias"))...)
	must(session.Run("step", append(batch(), Scalar("learning_rate", float32(0)))...))
	equal(t, must(State[float32](session, "fc2.bias")), before)
	_, err = View[float32](loss)
	fails(t, err, Usage) // of an earlier call
	equal(t, len(must(View[float32](must(must(session.Run("predict", batch()[0])).Get("logits"))))), 8*3)

	wrong := func(input Input) error {
		_, err := session.Run("predict", input)
		return err
	}
	fails(t, wrong(NewInput("x", []int64{8, 5}, make([]float32, 32))), DataError)
	fails(t, wrong(NewInput("x", []int64{1 << 62, 1 << 62}, make([]float32, 32))), DataError)
	err = wrong(NewInputOf("x", Float16, []int64{8, 4}, make([]float32, 32)))
	fails(t, err, Usage)
	equal(t, err.Error(), "input 'x' of type float16 is given as a slice of type float32")
	fails(t, wrong(NewInput("x", []int64{-8, 4}, make([]float32, 32))), DataError)
	fails(t, wrong(loss.Input()), Usage)
	fails(t, wrong(Tensor{}.Input()), Usage)
	session.Close()
	fails(t, wrong(batch()[0]), Usage)
	_, err = session.Model()
	fails(t, err, Usage)
}

// More inputs than a call of C pins at once.
func TestManyInputsAreInPlace(t *testing.T) {
	var tensors []Input
	for i := 0; i < 21; i++ {
		tensors = append(tensors, NewInput(fmt.Sprint("t", i), []int64{2}, []float32{float32(i), float32(-i)}))
	}
	path := filepath.Join(t.TempDir(), "many.safetensors")
	if err := SaveSafetensors(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
	for _, array := range must(must(OpenSafetensors(path)).Arrays()) {
		values := must(Copy[float32](array))
		equal(t, array.Name, fmt.Sprint("t", values[0]))
		equal(t, values[1], -values[0])
	}
}

// Memory that C reads may be part of an object that also has pointers, which C does not see.
func TestSlicesOfObjectsWithPointersAreInPlace(t *testing.T) {
	session := newSession(t)
	object := &struct {
		other  *Session
		x      [32]float32
		values [3]float32
	}{other: session, values: [3]float32{7, 8, 9}}
	if err := SetState(session, "fc2.bias", object.values[:]); err != nil {
		t.Fatal(err)
	}
	equal(t, must(GetState[float32](session, "fc2.bias")), object.values[:])
	must(session.Run("predict", NewInput("x", []int64{8, 4}, object.x[:])))
}

func TestStatesAreSeenWhereTheyAre(t *testing.T) {
	session, other := newSession(t), newSession(t)
	copy(must(State[float32](session, "fc2.bias")), []float32{1, 2, 3})
	equal(t, must(GetState[float32](session, "fc2.bias")), []float32{1, 2, 3})
	if err := session.SwapState(other, "fc2.bias"); err != nil {
		t.Fatal(err)
	}
	equal(t, must(State[float32](other, "fc2.bias")), []float32{1, 2, 3})
	if err := SetState(session, "fc2.bias", []float32{4, 4, 4}); err != nil {
		t.Fatal(err)
	}
	equal(t, must(State[float32](session, "fc2.bias")), []float32{4, 4, 4})
	fails(t, SetState(session, "fc2.bias", []float32{4, 4}), DataError)
	fails(t, SetState(session, "fc2.bias", []float64{4, 4, 4}), Usage)
	_, err := State[float64](session, "fc2.bias")
	fails(t, err, Usage)
	equal(t, err.Error(), "state 'fc2.bias' has elements of type float32, not float64")
	_, err = State[float32](session, "fc9")
	fails(t, err, Usage)
	address, onHost, err := session.Address("fc2.bias")
	if err != nil || !onHost {
		t.Fatal(address, onHost, err)
	}
	buffer := NewBuffer[float32](3)
	defer buffer.Close()
	copy(buffer.Slice, []float32{5, 5, 5})
	if err := session.SetStateFromDevice("fc2.bias", buffer.block, 12); err != nil {
		t.Fatal(err)
	}
	equal(t, must(State[float32](session, "fc2.bias")), []float32{5, 5, 5})
	found := false
	for _, port := range must(session.StatePorts()) {
		found = found || port.Role == "momentum_buffer" && port.Of == "fc2.bias"
	}
	equal(t, found, true)
	if err := session.Initialize(1); err != nil {
		t.Fatal(err)
	}
	fails(t, session.LoadAdapter("a", "no/folder"), Usage)
	fails(t, session.SetAdapter("a"), Usage)
}

func TestSessionsSayWhatTheyAre(t *testing.T) {
	session := newSession(t)
	header := string(must(os.ReadFile("../../include/onnx_train/version.h")))
	equal(t, strings.Contains(header, fmt.Sprintf("ONNX_TRAIN_VERSION %q", Version())), true)
	equal(t, must(session.Entries())[0], "predict")
	inputs := must(session.Inputs("step"))
	equal(t, inputs[0], Port{Name: "x", Type: Float32, Shape: []int64{-1, 4}})
	_, err := session.Inputs("nothing")
	fails(t, err, Usage)
	plan := must(session.Plan("step", Options{"batch": 4}))
	if plan.ArenaBytes == 0 || !strings.HasPrefix(plan.JSON, "[") || plan.Text == "" {
		t.Fatal(plan)
	}
	equal(t, must(session.Scale("x")), 1.0)
	equal(t, must(session.SampleAxis("step", "x")), 0)
	equal(t, must(session.Device()), DeviceInfo{Type: 1})
	rank, ranks, err := session.Ranks()
	if rank != 0 || ranks != 1 || err != nil {
		t.Fatal(rank, ranks, err)
	}
	if _, err := session.Generate([][]int64{{1}}, nil, nil); err == nil {
		t.Fatal("a classifier writes texts")
	}
	equal(t, session.GenerateNote(), "")
	equal(t, len(must(session.Metrics(nil))), 0)
	must(session.MetricTables())
}

func TestALanguageModelLearnsAndWritesTexts(t *testing.T) {
	gpt := must(LoadModel("../../models/gpt.onnx"))
	session := must(NewSession(gpt, nil))
	defer session.Close()
	texts := must(session.Generate([][]int64{{1, 2, 3}, {4}}, Options{"tokens": 4, "seed": 1}, func(text int, token int64) error {
		if text == 0 {
			return EndText
		}
		return nil
	}))
	equal(t, []int{len(texts[0]), len(texts[1])}, []int{1, 4})

	training := must(NewSession(must(gpt.Build(Options{"loss": "cross_entropy", "optimizer": "sgd"})), nil))
	defer training.Close()
	var text [129]int64
	for i := range text {
		text[i] = int64(i % 128)
	}
	shape := []int64{1, 128}
	arrays := []Input{NewInput("tokens", shape, text[:128]), NewInput("labels", shape, text[1:])}
	var tokens int64
	must(training.Fit(context.Background(), Training{Data: Data{Arrays: arrays}, Options: Options{"steps": 1}, OnStep: func(s Step) error {
		tokens = s.Tokens
		return nil
	}}))
	equal(t, tokens, int64(128))
}

// Batches of 8 and 5 samples, or an error at the second.
type halves struct {
	x      *Buffer[float32]
	labels []int64
	given  int
	epochs []int64
	err    error
}

func (h *halves) Begin(epoch int64) error {
	h.given, h.epochs = 0, append(h.epochs, epoch)
	return nil
}

func (h *halves) Next() ([]Input, error) {
	h.given++
	switch {
	case h.given == 1:
		return []Input{h.x.Input("x", []int64{8, 4}), NewInput("labels", []int64{8}, h.labels[:8])}, nil
	case h.given == 2 && h.err != nil:
		return nil, h.err
	case h.given == 2:
		return []Input{h.x.Input("x", []int64{5, 4}), NewInput("labels", []int64{5}, h.labels[8:])}, nil
	}
	return nil, io.EOF
}

func (h *halves) Batches() int64 { return 2 }

func TestBatchesOfTheProgramAreTrainedOn(t *testing.T) {
	session := newSession(t)
	data := &halves{x: NewBuffer[float32](32), labels: make([]int64, 13)}
	defer data.x.Close()
	var steps [][3]int64
	training := Training{Data: Data{Batches: data}, Options: Options{"epochs": 2, "lr": 0.1}, OnStep: func(s Step) error {
		if s.Tokens != 0 || !math.IsNaN(s.Utilization) {
			return fmt.Errorf("a step has %d tokens and a utilization of %v", s.Tokens, s.Utilization)
		}
		steps = append(steps, [3]int64{s.Step, s.Epoch, s.Samples})
		_, err := State[float32](session, "fc2.bias")
		if session.Close() == nil {
			return errors.New("a session at work was closed")
		}
		return err
	}}
	equal(t, must(session.Fit(context.Background(), training)), Finished)
	equal(t, steps, [][3]int64{{1, 1, 8}, {2, 1, 5}, {3, 2, 8}, {4, 2, 5}})
	equal(t, data.epochs, []int64{0, 1})
	data.err = errors.New("the disk is gone")
	_, err := session.Fit(context.Background(), training)
	equal(t, err, data.err)
}

func TestCallbacksEndATrainingAndTheirPanicsGoOn(t *testing.T) {
	session := newSession(t)
	var evaluations int
	var checkpoints []string
	training := Training{
		Data:       Data{Arrays: batch()},
		Evaluation: Data{Arrays: batch()},
		Options:    Options{"epochs": 5, "out": filepath.Join(t.TempDir(), "run")},
		OnEvaluation: func(e Evaluation) error {
			evaluations++
			if _, isThere := e.Metrics["loss"]; !isThere {
				return errors.New("no loss")
			}
			return Stop
		},
		OnCheckpoint: func(path string) error {
			checkpoints = append(checkpoints, filepath.Base(path))
			return nil
		},
		OnNote: func(string) error { return nil },
	}
	equal(t, must(session.Fit(context.Background(), training)), Stopped)
	if evaluations != 1 || !strings.Contains(strings.Join(checkpoints, " "), "last.onnx") {
		t.Fatal(evaluations, checkpoints)
	}

	ctx, cancel := context.WithCancel(context.Background())
	reason, err := session.Fit(ctx, Training{Data: Data{Arrays: batch()}, Options: Options{"epochs": 9}, OnStep: func(s Step) error {
		cancel()
		return nil
	}})
	if reason != Interrupted || !errors.Is(err, context.Canceled) {
		t.Fatal(reason, err)
	}

	func() {
		defer func() { equal(t, recover(), "of a callback") }()
		session.Fit(context.Background(), Training{Data: Data{Arrays: batch()}, Options: oneEpoch,
			OnStep: func(Step) error { panic("of a callback") }})
	}()
	must(session.Fit(context.Background(), Training{Data: Data{Arrays: batch()}, Options: oneEpoch}))
	metrics := must(session.Evaluate(Data{Arrays: batch()}, nil, nil))
	if _, isThere := metrics["accuracy"]; !isThere {
		t.Fatal(metrics)
	}
}

func TestFilesAreData(t *testing.T) {
	session, path := newSession(t), filepath.Join(t.TempDir(), "data.safetensors")
	if err := SaveSafetensors(path, batch(), map[string]string{"made by": "a test"}); err != nil {
		t.Fatal(err)
	}
	saved := must(OpenSafetensors(path))
	defer saved.Close()
	equal(t, saved.Metadata(), map[string]string{"made by": "a test"})
	var inputs []Input
	for _, array := range must(saved.Arrays()) {
		inputs = append(inputs, array.Input())
	}
	must(session.Run("step", inputs...))
	data := must(OpenDataset(path, session, "", nil))
	defer data.Close()
	samples, batches, err := data.Size(4)
	if samples != 8 || batches != 2 || err != nil {
		t.Fatal(samples, batches, err)
	}
	must(session.Fit(context.Background(), Training{Data: Data{Files: data}, Options: oneEpoch}))
	logits := must(must(session.Predict(Data{Files: data}, nil, nil)).Get("logits"))
	equal(t, logits.Shape, []int64{8, 3})
	_, err = OpenDataset("no/such.npz", nil, "", nil)
	fails(t, err, File)
}
