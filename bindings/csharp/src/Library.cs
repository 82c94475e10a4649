using System;

namespace OnnxTrain {
    /// <summary>What needs no model.</summary>
    public static unsafe class Library {
        /// <summary>The version of the library, "0.1.0".</summary>
        public static string Version {
            get {
                Load();
                return Results.Text(Native.onnx_train_version());
            }
        }

        // Before the first call: says what to do where the runtime finds no library.
        internal static void Load() {
            if (loaded) return;
            try {
                Native.onnx_train_version();
            } catch (DllNotFoundException error) {
                throw new DllNotFoundException("libonnx_train.so, or a library that it needs, is not found: set LD_LIBRARY_PATH to its folder "
                                               + "before the program starts, or copy it to the folder of OnnxTrain.dll; ldd lists what it needs", error);
            }
            loaded = true;
        }

        private static volatile bool loaded;

        /// <summary>The options of "build", "session", "fit", "data" and others, as onnx_train_options lists them, a line each.</summary>
        public static string Options(string of) {
            using (var arguments = new Arguments()) {
                return Results.Text(Native.onnx_train_options(arguments.Text(of)))
                       ?? throw new ArgumentException($"no options are known of '{of}'");
            }
        }

        /// <summary>The learning rate of a step, counted from 0.</summary>
        public static double LearningRate(long step, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                double rate;
                Results.Check(Native.onnx_train_learning_rate(arguments.Options(options), Results.Size(options.Length), step, &rate));
                return rate;
            }
        }

        /// <summary>The rows on which a training with these options trains, and those on which it evaluates.</summary>
        public static (long[] Training, long[] Evaluation) Split(int samples, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                var training = new long[Math.Max(samples, 1)];
                var evaluation = new long[Math.Max(samples, 1)];
                UIntPtr numTraining, numEvaluation;
                fixed (long* first = training, second = evaluation) {
                    Results.Check(Native.onnx_train_split(samples, arguments.Options(options), Results.Size(options.Length), first,
                                                          &numTraining, second, &numEvaluation));
                }
                Array.Resize(ref training, (int)numTraining);
                Array.Resize(ref evaluation, (int)numEvaluation);
                return (training, evaluation);
            }
        }
    }
}
