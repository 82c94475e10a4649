using System;
using System.Collections.Generic;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;

namespace OnnxTrain {
    /// <summary>
    /// The data of a training: arrays (DataSource.Of), files (Dataset), or a class of the program that gives batches. Used
    /// by one training at a time, on its thread. An exception of a method ends the training, and the call throws it.
    /// </summary>
    public abstract class DataSource {
        /// <summary>Arrays with one sample per row, which the library shuffles and cuts into batches.</summary>
        public static DataSource Of(params Tensor[] arrays) => new ArraySource(arrays);

        /// <summary>Starts epoch `epoch`, counted from 0.</summary>
        public virtual void Begin(long epoch) {}

        /// <summary>
        /// The inputs of the next batch; none: the epoch is over. Their first dimension is the number of samples, which may
        /// change. Their memory is read until the next call.
        /// </summary>
        public abstract Tensor[] Next();

        /// <summary>Batches of an epoch; 0: not known. Schedules that have an end need it, unless "steps" is given.</summary>
        public virtual long Batches => 0;

        internal virtual Tensor[] Arrays => null;
        internal virtual DatasetHandle Files => null;

        private sealed class ArraySource : DataSource {
            private readonly Tensor[] arrays;

            internal ArraySource(Tensor[] arrays) {
                this.arrays = (Tensor[])(arrays ?? throw new ArgumentNullException(nameof(arrays))).Clone();
            }

            public override Tensor[] Next() => new Tensor[0];
            internal override Tensor[] Arrays => arrays;
        }
    }

    /// <summary>
    /// What is told of a training, on the thread that called it; each may be null. An exception ends the training, and the
    /// call throws it. The session may be used in OnEvaluation, and everywhere with the option "wait-for-steps" or on the CPU.
    /// </summary>
    public sealed class Observer {
        public Func<Step, Next> OnStep { get; set; }
        public Func<Evaluation, Next> OnEvaluation { get; set; }
        /// <summary>Gets the path when the writing of a checkpoint starts.</summary>
        public Func<string, Next> OnCheckpoint { get; set; }
        /// <summary>Gets a line on something unusual that the training goes on from.</summary>
        public Action<string> OnNote { get; set; }
    }

    // A call of the library that calls the program. Delegates for C are static, and so never collected; what they work on
    // is found by a number. The first exception of a callback ends the call, and Finish throws it.
    internal sealed unsafe class Callbacks : IDisposable {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate int OnBegin(void* user, long epoch);
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate int OnNext(void* user, onnx_train_tensor** inputs, UIntPtr* count);
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate int OnPointer(void* user, void* told);
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate int OnToken(void* user, UIntPtr text, long token);

        private static readonly OnBegin begin = (user, epoch) => At(user).Begin(epoch);
        private static readonly OnNext next = (user, inputs, count) => At(user).Next(inputs, count);
        private static readonly OnPointer step = (user, told) => At(user).Step((onnx_train_step*)told);
        private static readonly OnPointer evaluation = (user, told) => At(user).Evaluation((onnx_train_evaluation*)told);
        private static readonly OnPointer checkpoint = (user, told) => At(user).Checkpoint((byte*)told);
        private static readonly OnPointer note = (user, told) => At(user).Note((byte*)told);
        private static readonly OnToken token = (user, text, number) => At(user).Token(text, number);

        private readonly DataSource source;
        private readonly Observer observer;
        private readonly Func<int, long, Next> onToken;
        private readonly Callbacks outer;
        private readonly Arguments arrays = new Arguments();
        private Arguments batch = new Arguments();
        private DatasetHandle held;
        private GCHandle self;
        private ExceptionDispatchInfo thrown;

        // `outer` keeps what is thrown, if it is given.
        internal Callbacks(DataSource source, Observer observer, Func<int, long, Next> onToken = null, Callbacks outer = null) {
            this.source = source;
            this.observer = observer ?? new Observer();
            this.onToken = onToken;
            this.outer = outer ?? this;
            self = GCHandle.Alloc(this);
        }

        internal void* User => (void*)GCHandle.ToIntPtr(self);
        internal IntPtr TokenFunction => Marshal.GetFunctionPointerForDelegate(token);

        internal onnx_train_observer View => new onnx_train_observer {
            size = (UIntPtr)(ulong)sizeof(onnx_train_observer),
            user = User,
            on_step = observer.OnStep == null ? IntPtr.Zero : Marshal.GetFunctionPointerForDelegate(step),
            on_evaluation = observer.OnEvaluation == null ? IntPtr.Zero : Marshal.GetFunctionPointerForDelegate(evaluation),
            on_checkpoint = observer.OnCheckpoint == null ? IntPtr.Zero : Marshal.GetFunctionPointerForDelegate(checkpoint),
            on_note = observer.OnNote == null ? IntPtr.Zero : Marshal.GetFunctionPointerForDelegate(note)
        };

        internal onnx_train_data Data() {
            var data = new onnx_train_data { size = (UIntPtr)(ulong)sizeof(onnx_train_data), user = User };
            var files = source.Files;
            if (files != null) {
                var got = false;
                files.DangerousAddRef(ref got);
                held = files;
                data.dataset = held.DangerousGetHandle();
            } else if (source.Arrays != null) {
                data.arrays = arrays.Tensors(source.Arrays);
                data.num_arrays = Results.Size(source.Arrays.Length);
            } else {
                data.batches = source.Batches;
                data.begin = Marshal.GetFunctionPointerForDelegate(begin);
                data.next = Marshal.GetFunctionPointerForDelegate(next);
            }
            return data;
        }

        internal void Finish(int status) {
            thrown?.Throw();
            Results.Check(status);
        }

        public void Dispose() {
            self.Free();
            arrays.Dispose();
            batch.Dispose();
            held?.DangerousRelease();
        }

        private static Callbacks At(void* user) => (Callbacks)GCHandle.FromIntPtr((IntPtr)user).Target;

        private int Guarded(Func<int> call) {
            try {
                return call();
            } catch (Exception error) {
                outer.thrown = outer.thrown ?? ExceptionDispatchInfo.Capture(error);
                return onnx_train_next.ONNX_TRAIN_FAIL;
            }
        }

        private int Begin(long epoch) => Guarded(() => {
            source.Begin(epoch);
            return onnx_train_next.ONNX_TRAIN_CONTINUE;
        });

        private int Next(onnx_train_tensor** inputs, UIntPtr* count) => Guarded(() => {
            var tensors = source.Next() ?? throw new InvalidOperationException("Next() gave null: an empty array ends an epoch");
            batch.Dispose();
            batch = new Arguments();
            *inputs = batch.Tensors(tensors);
            *count = Results.Size(tensors.Length);
            return onnx_train_next.ONNX_TRAIN_CONTINUE;
        });

        private int Step(onnx_train_step* told) => Guarded(() => (int)observer.OnStep(new Step {
            Number = told->step, Epoch = told->epoch, Samples = told->samples, Loss = told->loss,
            LearningRate = told->learning_rate, Accuracy = told->accuracy, GradNorm = told->grad_norm,
            Seconds = told->seconds, LossScale = told->loss_scale, Skipped = told->skipped != 0,
            Tokens = told->tokens, Utilization = told->utilization
        }));

        private int Evaluation(onnx_train_evaluation* told) => Guarded(() => {
            var over = false;
            var tables = Results.Tensors(told->tables, told->num_tables, () => {
                if (over) throw new InvalidOperationException("tables are valid within the callback");
            });
            var answer = (int)observer.OnEvaluation(new Evaluation {
                Step = told->step, Epoch = told->epoch, TrainLoss = told->train_loss, Best = told->best != 0,
                Metrics = Results.Metrics(told->metrics, told->num_metrics), Tables = tables
            });
            over = true;
            return answer;
        });

        private int Checkpoint(byte* path) => Guarded(() => (int)observer.OnCheckpoint(Results.Text(path)));

        private int Note(byte* text) => Guarded(() => {
            observer.OnNote(Results.Text(text));
            return onnx_train_next.ONNX_TRAIN_CONTINUE;
        });

        private int Token(UIntPtr text, long number) => Guarded(() => (int)onToken((int)text, number));
    }
}
