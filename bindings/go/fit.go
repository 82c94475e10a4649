package onnxtrain

// #include "calls.h"
import "C"

import (
	"context"
	"errors"
	"io"
	"runtime/cgo"
	"unsafe"
)

// What callbacks give besides nil, which goes on, and errors, which end the training at once and are what Fit gives.
var (
	Stop      = errors.New("stop after this step, with a last evaluation")
	Interrupt = errors.New("stop after this step, without an evaluation: a resumed training goes on as if never stopped")
	// EndText is of Generate. In a training it goes on.
	EndText = errors.New("this text is complete, and the others go on")
)

// StopReason says why a training ended.
type StopReason int

const (
	Finished    StopReason = C.ONNX_TRAIN_FINISHED    // the end that the options say
	Interrupted StopReason = C.ONNX_TRAIN_INTERRUPTED // a callback gave Interrupt, or the context ended
	EarlyStop   StopReason = C.ONNX_TRAIN_EARLY_STOP
	TimeLimit   StopReason = C.ONNX_TRAIN_TIME_LIMIT
	Stopped     StopReason = C.ONNX_TRAIN_STOPPED // a callback gave Stop
	Target      StopReason = C.ONNX_TRAIN_TARGET  // the option "stop-at"
)

var stopNames = map[StopReason]string{Finished: "finished", Interrupted: "interrupted", EarlyStop: "early-stop",
	TimeLimit: "time-limit", Stopped: "stopped", Target: "target"}

func (r StopReason) String() string { return nameIn(stopNames, r) }

// Batches are made by the program.
type Batches interface {
	// Begin starts an epoch, counted from 0.
	Begin(epoch int64) error
	// Next gives the inputs of the next batch; io.EOF: the epoch is over. Their first dimension is the number of samples, which
	// may change from batch to batch. Slices are copied, buffers must not be changed until the next call.
	Next() ([]Input, error)
	// Batches is how many an epoch has, for schedules that need an end; 0: not known.
	Batches() int64
}

// Data has one of these.
type Data struct {
	Arrays  []Input  // with one sample per row, which the library shuffles and cuts into batches
	Files   *Dataset // cut into batches as arrays are
	Batches Batches
}

func (d Data) isNone() bool { return d.Arrays == nil && d.Files == nil && d.Batches == nil }

// Step is one that is done.
type Step struct {
	Step, Epoch, Samples   int64   // step and epoch counted from 1
	Loss                   float64 // of the step's samples, before the update
	LearningRate, Accuracy float64 // accuracy: NaN where the model has none
	GradNorm, Seconds      float64
	LossScale              float64 // of a model with loss scaling; else 0
	Skipped                bool    // with loss scaling, the gradients overflow, and the weights stay as they are
	Tokens                 int64   // of the samples; 0 of a model that reads no texts
	// What the step computes against what the machine can, about 0 to 1; NaN in the first ten seconds, of a model without
	// products and convolutions, and of several ranks on CPUs.
	Utilization float64
}

// Evaluation is one that is done.
type Evaluation struct {
	Step, Epoch int64
	TrainLoss   float64            // over all that counts since the previous evaluation; NaN where nothing does
	Metrics     map[string]float64 // empty without evaluation data
	Best        bool               // the best so far, in the metric of the option "best"
	Tables      []Tensor           // what metrics say by class; until the callback returns
}

// Training is what Fit does. Callbacks may be nil. They run before Fit returns, and may read the session; on a device that
// works asynchronously only OnEvaluation may, or with the option "wait-for-steps".
type Training struct {
	Data         Data
	Evaluation   Data
	Options      Options // of onnx_train_fit
	OnStep       func(Step) error
	OnEvaluation func(Evaluation) error
	OnCheckpoint func(path string) error // when its writing starts
	OnNote       func(text string) error // something unusual that the training goes on from
}

// A call of C with callbacks.
type running struct {
	session  *Session
	training *Training
	context  context.Context
	err      error // the first one of the callbacks
	panicked bool
	panics   any
}

// Batches of a running call, with the memory of the current one.
type source struct {
	running *running
	batches Batches
	current scope
}

// Fit trains until a limit is reached, a callback ends it, or the context does: then the training is interrupted, and the
// error is that of the context. After a failure the session has the state of its last successful step.
func (s *Session) Fit(ctx context.Context, training Training) (StopReason, error) {
	var reason C.onnx_train_stop_reason
	err := s.run(ctx, &training, func(data, evaluation *C.onnx_train_data, options *C.onnx_train_option, count C.size_t,
		observer *C.onnx_train_observer) C.onnx_train_status {
		return C.onnx_train_fit(s.handle, data, evaluation, options, count, observer, &reason)
	})
	if err == nil && StopReason(reason) == Interrupted {
		err = ctx.Err()
	}
	return StopReason(reason), err
}

func metrics(items *C.onnx_train_metric, count C.size_t) map[string]float64 {
	read := map[string]float64{}
	for _, metric := range list(items, count) {
		read[C.GoString(metric.name)] = float64(metric.value)
	}
	return read
}

// Evaluate gives loss and metrics over all data. Options are those of onnx_train_evaluate. OnNote may be nil.
func (s *Session) Evaluate(data Data, options Options, onNote func(string) error) (map[string]float64, error) {
	var items *C.onnx_train_metric
	var numMetrics C.size_t
	training := Training{Data: data, Options: options, OnNote: onNote}
	err := s.run(context.Background(), &training, func(data, _ *C.onnx_train_data, options *C.onnx_train_option,
		count C.size_t, observer *C.onnx_train_observer) C.onnx_train_status {
		return C.onnx_train_evaluate(s.handle, data, options, count, observer, &items, &numMetrics)
	})
	if err != nil {
		return nil, err
	}
	return metrics(items, numMetrics), nil
}

// Predict gives the outputs of "predict" for all samples of arrays or files, in their order. Options are those of
// onnx_train_predict. OnNote may be nil.
func (s *Session) Predict(data Data, options Options, onNote func(string) error) (*Outputs, error) {
	ofRole, err := s.namesOfRoles("predict")
	if err != nil {
		return nil, err
	}
	var outputs *C.onnx_train_tensor
	var numOutputs C.size_t
	training := Training{Data: data, Options: options, OnNote: onNote}
	err = s.run(context.Background(), &training, func(data, _ *C.onnx_train_data, options *C.onnx_train_option,
		count C.size_t, observer *C.onnx_train_observer) C.onnx_train_status {
		return C.onnx_train_predict(s.handle, data, options, count, observer, &outputs, &numOutputs)
	})
	if err != nil {
		return nil, err
	}
	return &Outputs{tensors(outputs, numOutputs, s, s.calls), ofRole}, nil
}

// Metrics gives those that are made of statistics, outputs of "evaluate" with the role "statistic":
// onnx_train_session_metrics.
func (s *Session) Metrics(statistics []Input) (map[string]float64, error) {
	var c scope
	defer c.free()
	array, count := c.inputs(statistics, false)
	var items *C.onnx_train_metric
	var numMetrics C.size_t
	err := s.call(&c, func() C.onnx_train_status {
		return C.onnx_train_session_metrics(s.handle, array, count, &items, &numMetrics)
	})
	return metrics(items, numMetrics), err
}

// MetricTables is what the metrics of the last Evaluate or Metrics say by class: float64 [C], such as "f1_per_class", and
// [C,C], "confusion_matrix", by label and prediction.
func (s *Session) MetricTables() ([]Tensor, error) {
	var c scope
	var tables *C.onnx_train_tensor
	var count C.size_t
	err := s.call(&c, func() C.onnx_train_status {
		return C.onnx_train_session_metric_tables(s.handle, &tables, &count)
	})
	return tensors(tables, count, s, s.calls), err
}

// run calls f with data, options and callbacks. A panic of a callback goes on when it has returned.
func (s *Session) run(ctx context.Context, training *Training, f func(data, evaluation *C.onnx_train_data,
	options *C.onnx_train_option, count C.size_t, observer *C.onnx_train_observer) C.onnx_train_status) error {
	var c scope
	defer c.free()
	r := &running{session: s, training: training, context: ctx}
	data, freeData := r.data(&c, training.Data)
	defer freeData()
	evaluation, freeEvaluation := r.data(&c, training.Evaluation)
	defer freeEvaluation()
	options, count := c.options(training.Options)
	user := cgo.NewHandle(r)
	defer user.Delete()
	observer := (*C.onnx_train_observer)(c.alloc(1, unsafe.Sizeof(C.onnx_train_observer{})))
	C.onnxtrain_observer(observer, C.uintptr_t(user), number(training.OnStep != nil || ctx.Done() != nil),
		number(training.OnEvaluation != nil), number(training.OnCheckpoint != nil), number(training.OnNote != nil))
	err := s.call(&c, func() C.onnx_train_status { return f(data, evaluation, options, count, observer) },
		training.Data.Files, training.Evaluation.Files)
	if r.panicked {
		panic(r.panics)
	}
	if r.err != nil {
		return r.err
	}
	return err
}

func number(is bool) C.int {
	if is {
		return 1
	}
	return 0
}

// data gives what C sees of them, nil of none, and what ends that.
func (r *running) data(c *scope, data Data) (*C.onnx_train_data, func()) {
	if data.isNone() {
		return nil, func() {}
	}
	given := (*C.onnx_train_data)(c.alloc(1, unsafe.Sizeof(C.onnx_train_data{})))
	given.size = C.size_t(unsafe.Sizeof(*given))
	given.arrays, given.num_arrays = c.inputs(data.Arrays, false)
	if data.Files != nil {
		given.dataset = data.Files.handle
	}
	if data.Batches == nil {
		return given, func() {}
	}
	from := &source{running: r, batches: data.Batches}
	user := cgo.NewHandle(from)
	given.batches = C.int64_t(data.Batches.Batches())
	C.onnxtrain_batches(given, C.uintptr_t(user))
	return given, func() {
		user.Delete()
		from.current.free()
	}
}

// guard gives C what a callback wants. Neither errors nor panics go further than here.
func (r *running) guard(f func() error) (next C.onnx_train_next) {
	isDone := false
	defer func() {
		if !isDone {
			r.panicked, r.panics = true, recover()
			next = C.ONNX_TRAIN_FAIL
		}
	}()
	err := f()
	isDone = true
	switch {
	case err == nil:
		return C.ONNX_TRAIN_CONTINUE
	case errors.Is(err, Stop):
		return C.ONNX_TRAIN_STOP
	case errors.Is(err, Interrupt):
		return C.ONNX_TRAIN_INTERRUPT
	case errors.Is(err, EndText):
		return C.ONNX_TRAIN_END_TEXT
	}
	if r.err == nil {
		r.err = err
	}
	return C.ONNX_TRAIN_FAIL
}

//export onnxtrainBegin
func onnxtrainBegin(user C.uintptr_t, epoch C.int64_t) C.onnx_train_next {
	from := cgo.Handle(user).Value().(*source)
	return from.running.guard(func() error { return from.batches.Begin(int64(epoch)) })
}

//export onnxtrainNext
func onnxtrainNext(user C.uintptr_t, inputs **C.onnx_train_tensor, count *C.size_t) C.onnx_train_next {
	from := cgo.Handle(user).Value().(*source)
	return from.running.guard(func() error {
		from.current.free()
		*inputs, *count = nil, 0
		batch, err := from.batches.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		*inputs, *count = from.current.inputs(batch, true)
		return from.current.err
	})
}

//export onnxtrainOnStep
func onnxtrainOnStep(user C.uintptr_t, s *C.onnx_train_step) C.onnx_train_next {
	r := cgo.Handle(user).Value().(*running)
	return r.guard(func() error {
		if f := r.training.OnStep; f != nil {
			if err := f(Step{int64(s.step), int64(s.epoch), int64(s.samples), float64(s.loss), float64(s.learning_rate),
				float64(s.accuracy), float64(s.grad_norm), float64(s.seconds), float64(s.loss_scale),
				s.skipped != 0, int64(s.tokens), float64(s.utilization)}); err != nil {
				return err
			}
		}
		if r.context.Err() != nil {
			return Interrupt
		}
		return nil
	})
}

//export onnxtrainOnEvaluation
func onnxtrainOnEvaluation(user C.uintptr_t, e *C.onnx_train_evaluation) C.onnx_train_next {
	r := cgo.Handle(user).Value().(*running)
	return r.guard(func() error {
		return r.training.OnEvaluation(Evaluation{int64(e.step), int64(e.epoch), float64(e.train_loss),
			metrics(e.metrics, e.num_metrics), e.best != 0, tensors(e.tables, e.num_tables, r.session, r.session.calls)})
	})
}

//export onnxtrainOnCheckpoint
func onnxtrainOnCheckpoint(user C.uintptr_t, path *C.char) C.onnx_train_next {
	r := cgo.Handle(user).Value().(*running)
	return r.guard(func() error { return r.training.OnCheckpoint(C.GoString(path)) })
}

//export onnxtrainOnNote
func onnxtrainOnNote(user C.uintptr_t, text *C.char) C.onnx_train_next {
	r := cgo.Handle(user).Value().(*running)
	return r.guard(func() error { return r.training.OnNote(C.GoString(text)) })
}
