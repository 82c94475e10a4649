// Every part of the binding once, and what it says of mistakes. Usage: Tests ROOT FOLDER; without them it says the version
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using OnnxTrain;

internal static class Tests {
    private static string root, folder;

    private static int Main(string[] arguments) {
        if (arguments.Length == 0) {
            Console.WriteLine($"version {Library.Version}");
            return 0;
        }
        root = arguments[0];
        folder = arguments[1];
        Errors();
        Models();
        Runs();
        Buffers();
        Training();
        CallbacksThrow();
        Threads();
        Data();
        Texts();
        Sessions();
        Console.WriteLine($"csharp: all passed, onnx-train {Library.Version}");
        return 0;
    }

    private static string Path(string name) => System.IO.Path.Combine(root, name);

    private static void Expect(bool condition, object said = null, [CallerLineNumber] int line = 0) {
        if (!condition) throw new Exception($"line {line}: {said}");
    }

    private static T Thrown<T>(Action call, [CallerLineNumber] int line = 0) where T : Exception {
        try {
            call();
        } catch (T error) {
            return error;
        }
        throw new Exception($"line {line}: threw no {typeof(T).Name}");
    }

    // The one line of all bindings. .NET adds another with the object's name.
    private static void Closed(string owner, Action call, [CallerLineNumber] int line = 0) {
        var error = Thrown<ObjectDisposedException>(call, line);
        Expect(error.ObjectName == owner && error.Message.Split('\n')[0].Trim() == $"the {owner.ToLower()} is closed", error.Message, line);
    }

    private static void Null(string name, Action call, [CallerLineNumber] int line = 0) {
        var error = Thrown<ArgumentNullException>(call, line);
        Expect(error.ParamName == name, error.ParamName, line);
    }

    private static Model Digits() {
        using (var forward = Model.Load(Path("models/digits_cnn.onnx"))) {
            return forward.Build(("loss", "cross_entropy"), ("optimizer", "adamw"));
        }
    }

    private static Model Mlp() {
        using (var forward = Model.Load(Path("tests/fixtures/mlp.onnx"))) {
            return forward.Build(("loss", "cross_entropy"), ("optimizer", "sgd(momentum=0.9)"));
        }
    }

    // The texts of the library, as the list of all languages has them.
    private static void Errors() {
        using (var forward = Model.Load(Path("models/digits_cnn.onnx")))
        using (var training = Digits())
        using (var session = new Session(training)) {
            var calls = new Dictionary<string, Action> {
                ["load"] = () => Model.Load("no_such_file.onnx"),
                ["build"] = () => forward.Build(("loss", "no_such_loss")),
                ["session"] = () => new Session(training, ("speed", "1")),
                ["run"] = () => session.Run("step")
            };
            var lines = 0;
            foreach (var line in File.ReadAllLines(Path("bindings/errors.txt")).Where(text => !text.StartsWith("#"))) {
                var parts = line.Split('\t');
                var error = Thrown<OnnxTrainException>(calls[parts[0]]);
                Expect(error.Message == parts[3], error.Message);
                Expect(error.Code == parts[2] && (int)error.Status == int.Parse(parts[1]), error.Code);
                ++lines;
            }
            Expect(lines == 4, lines);
        }
        var unicode = Thrown<OnnxTrainException>(() => Model.Load("kein Modell \u00e4\u20ac\U0001F600.onnx"));
        Expect(unicode.Message.StartsWith("kein Modell \u00e4\u20ac\U0001F600.onnx: ", StringComparison.Ordinal), unicode.Message);
        Expect(unicode.Status == Status.File, unicode.Status);
        Thrown<ArgumentException>(() => Model.Load("a\0b.onnx"));
        Thrown<ArgumentNullException>(() => Model.Load(null));
        Thrown<ArgumentException>(() => Library.Options("nothing"));
    }

    private static void Models() {
        var saved = System.IO.Path.Combine(folder, "model.onnx");
        using (var forward = Model.Load(Path("tests/fixtures/mlp.onnx")))
        using (var training = Mlp()) {
            using (var copy = Model.FromBytes(forward.ToBytes())) copy.Save(saved);
            Thrown<OnnxTrainException>(() => Model.FromBytes(new byte[] { 1, 2, 3 }));
            Thrown<OnnxTrainException>(() => Model.FromBytes(new byte[0]));
            Expect(training.Metadata["onnx_train.loss"].Contains("cross_entropy"));
            Expect(training.Notes.Count == 0);
            var report = forward.Check();
            Expect(report.Text.Contains("It can be trained") && report.Failure == "" && report.Obstacles.Count == 0, report.Text);
            var obstacle = forward.Check(("loss", "mse("));
            Expect(obstacle.Obstacles.Count == 1 && obstacle.Obstacles[0].What.Contains("column"), obstacle.Text);
            var rows = Tensor.Of("x", new long[] { 2, 4 }, new float[8]);
            var labels = Tensor.Of("labels", new long[] { 2 }, 0L, 1L);
            Expect(forward.Sizes(rows) == "");
            var built = forward.BuildForData(new[] { rows, labels });
            Expect(built.Note.Contains("cross_entropy"), built.Note);
            built.Training.Dispose();
            using (var digits = Model.Load(Path("models/digits_cnn.onnx"))) {
                digits.BuildForData(Path("models/data/digits_train.npz")).Training.Dispose();
            }
            using (var flat = training.Flatten("step"))
            using (var inference = training.Export())
            using (var derivative = forward.Derivative("gradient", ("loss", "cross_entropy"))) {
                Expect(flat.ToBytes().Length > inference.ToBytes().Length && derivative.ToBytes().Length > 0);
            }
            var passes = forward.Differentiate();
            passes.Forward.Dispose();
            passes.Backward.Dispose();
            Thrown<OnnxTrainException>(() => training.SaveAdapter(folder + "/adapter"));
            using (var changed = forward.WithWeights(true, Tensor.Of("fc2.bias", new long[] { 3 }, 1.0, 1.0, 1.0)))
            using (var trained = changed.Build(("loss", "cross_entropy"), ("optimizer", "sgd"))) {
                var served = System.IO.Path.Combine(folder, "served.onnx");
                var written = trained.ExportInto(served, ("into", Path("tests/fixtures/mlp.onnx")));
                Expect(written.Contains("trained weights in") && File.Exists(served), written);
                Expect(Thrown<OnnxTrainException>(() => trained.ExportInto(served)).Status == Status.Usage);
            }
            Thrown<OnnxTrainException>(() => forward.WithWeights(true, Tensor.Of("fc9", new long[] { 1 }, 1.0)));
            forward.WithWeights(false, Tensor.Of("fc9", new long[] { 1 }, 1.0)).Dispose();
            Thrown<OnnxTrainException>(() => forward.BuildWithLoss(forward));
        }
        var closed = Mlp();
        closed.Dispose();
        closed.Dispose();
        Closed("Model", () => closed.ToBytes());
        Closed("Model", () => new Session(closed));
        using (var forward = Model.Load(Path("tests/fixtures/mlp.onnx"))) Closed("Model", () => forward.Derivative("gradient", closed));
        Expect(Library.LearningRate(0, ("lr", "0.5"), ("schedule", "linear"), ("steps", "4"), ("warmup", "2")) == 0.25);
        var split = Library.Split(10, ("val-split", "0.2"), ("seed", "1"));
        Expect(split.Training.Length == 8 && split.Evaluation.Length == 2);
        Expect(Library.Options("fit").Contains("epochs\t"));
    }

    private static void Runs() {
        using (var training = Mlp())
        using (var session = new Session(training, ("threads", "1")))
        using (var other = new Session(training)) {
            Expect(session.Entries[0] == "predict" && session.Ranks.Rank == 0 && session.Ranks.Ranks == 1);
            var x = session.InputPorts("step")[0];
            Expect(x.Name == "x" && x.Type == ElementType.Float && x.Shape[0] == -1 && x.Shape[1] == 4 && !x.HasDefault, x.Name);
            Expect(session.Device.Type == 1 && session.Device.Stream == IntPtr.Zero);
            Expect(session.Scale("x") == 1 && session.SampleAxis("step", "x") == 0);
            var plan = session.Plan("step", ("batch", "2"));
            Expect(plan.ArenaBytes > 0 && plan.Text.Contains("kernel") && plan.Json.Contains("\"kernel\""), plan.Text);
            var rows = Tensor.Of("x", new long[] { 2, 4 }, 1f, 0, 0, 0, 0, 1, 0, 0);
            var labels = Tensor.Of("labels", new long[] { 2 }, 0L, 1L);
            float first = 0, last = 0;
            for (var step = 0; step < 20; ++step) {
                last = session.Run("step", rows, labels, Tensor.Scalar("learning_rate", 0.1f)).Scalar<float>("loss");
                if (step == 0) first = last;
            }
            Expect(last < first / 2, last);
            var odd = System.Runtime.InteropServices.Marshal.AllocHGlobal(33);
            System.Runtime.InteropServices.Marshal.Copy(rows.ToArray<float>(), 0, odd + 1, 8);
            var same = session.Run("predict", Tensor.At("x", ElementType.Float, new long[] { 2, 4 }, odd + 1))[0].ToArray<float>();
            System.Runtime.InteropServices.Marshal.FreeHGlobal(odd);
            var outputs = session.Run("predict", rows);
            Expect(same.SequenceEqual(outputs[0].ToArray<float>()), "memory at any address");
            Expect(outputs.Count == 1 && outputs[0].Shape[0] == 2);
            Thrown<KeyNotFoundException>(() => outputs["nothing"].ToString());
            foreach (var name in session.States.Where(state => state.StartsWith("fc"))) other.Set(name, session.Get<float>(name));
            Expect(other.Get<float>("fc1.weight").SequenceEqual(session.Get<float>("fc1.weight")));
            session.Initialize(1);
            session.Swap("fc1.weight", other);
            Expect(session.StatePorts.Length == session.States.Count);
            Thrown<OnnxTrainException>(() => session.SetAdapter("none"));
            Thrown<OnnxTrainException>(() => session.LoadAdapter("none", "no/folder"));
            var type = Thrown<OnnxTrainException>(() => session.Run("step", Tensor.Of("x", new long[] { 2, 4 }, new int[8]), labels));
            Expect(type.Status == Status.Data && type.Message.Contains("'x'"), type.Message);
            Thrown<InvalidOperationException>(() => session.Set("fc1.bias", new long[3]));
            Thrown<OnnxTrainException>(() => session.SetFromDevice("fc1.bias", IntPtr.Zero, 1));
            var values = new float[session.Get<float>("fc1.bias").Length];
            values[0] = 7;
            using (var memory = new Memory(values)) session.SetFromDevice("fc1.bias", memory.Address, 4 * values.Length);
            Expect(session.Get<float>("fc1.bias")[0] == 7);
        }
        Nulls();
        var large = Thrown<ArgumentException>(() => Tensor.Of("x", new[] { 1L << 62, 1L << 62 }, 1f)).Message;
        Expect(large == "the shape [4611686018427387904, 4611686018427387904] of 'x' has more elements than a memory holds", large);
        Thrown<ArgumentException>(() => Tensor.Of("x", new long[] { 3 }, 1f));
        Thrown<ArgumentException>(() => Tensor.Of("x", ElementType.Bool, new long[] { 1 }, new[] { 1f }));
    }

    private static void Nulls() {
        using (var training = Mlp())
        using (var session = new Session(training)) {
            Null("training", () => new Session(null));
            Null("options", () => new Session(training, null));
            Null("training", () => session.Fit(null));
            Null("data", () => session.Evaluate(null));
            Null("data", () => session.Predict(null));
            Null("arrays", () => DataSource.Of(null));
            Null("tensors", () => session.Run("step", null));
            Null("prompts", () => session.Generate(null, null));
            Null("prompts", () => session.Generate(new long[][] { null }, null));
            Null("other", () => session.Swap("fc1.bias", null));
            Null("values", () => session.Set<float>("fc1.bias", null));
            Null("loss", () => training.BuildWithLoss(null));
            Null("path", () => training.BuildForData((string)null));
            Null("shape", () => Tensor.Of("x", null, 1f));
            Null("shape", () => Tensor.At("x", ElementType.Float, null, IntPtr.Zero));
            Null("bytes", () => Model.FromBytes(null));
        }
    }

    private sealed class Memory : IDisposable {
        private System.Runtime.InteropServices.GCHandle handle;

        internal Memory(float[] values) {
            handle = System.Runtime.InteropServices.GCHandle.Alloc(values, System.Runtime.InteropServices.GCHandleType.Pinned);
        }

        internal IntPtr Address => handle.AddrOfPinnedObject();
        public void Dispose() => handle.Free();
    }

    // Memory is shared without copies, and is there as long as the documentation says.
    private static void Buffers() {
        using (var training = Mlp()) {
            var session = new Session(training);
            var bias = session.Span<float>("fc1.bias");
            var before = bias[0];
            var values = new float[8];
            var rows = Tensor.Of("x", new long[] { 2, 4 }, values);
            values[0] = values[5] = 1;  // the tensor sees it
            var labels = Tensor.Of("labels", new long[] { 2 }, 0L, 1L);
            for (var i = 0; i < 5; ++i) session.Run("step", rows, labels, Tensor.Scalar("learning_rate", 1f));
            Expect(bias[0] != before, "the span does not see the step");
            bias[0] = 42;
            Expect(session.Get<float>("fc1.bias")[0] == 42, "the session does not see the span");
            var address = session.Address("fc1.bias", out var onHost);
            var alias = Tensor.At("alias", ElementType.Float, new long[] { 1 }, address);
            Expect(onHost && alias.AsSpan<float>()[0] == 42);
            var stale = session.Run("predict", rows)[0];
            Expect(stale.AsSpan<float>().Length == 6);
            session.Run("predict", rows);
            Thrown<InvalidOperationException>(() => stale.ToArray<float>());
            var last = session.Run("predict", rows)[0];
            session.Dispose();
            session.Dispose();
            Closed("Session", () => last.ToArray<float>());
            Closed("Session", () => session.Run("predict", rows));
            Closed("Session", () => Dataset.Open(Path("models/data/digits_test.npz"), session));
        }
    }

    private static void Training() {
        using (var training = Mlp())
        using (var session = new Session(training)) {
            var x = new float[64 * 4];
            var labels = new long[64];
            for (var i = 0; i < 64; ++i) {
                x[4 * i + i % 3] = 1;
                labels[i] = i % 3;
            }
            var arrays = DataSource.Of(Tensor.Of("x", new long[] { 64, 4 }, x), Tensor.Of("labels", new long[] { 64 }, labels));
            var told = new List<string>();
            var observer = new Observer {
                OnStep = step => step.Number < 30 ? Next.Continue : Next.Stop,
                OnEvaluation = evaluation => {
                    told.Add($"evaluation {evaluation.Epoch} {evaluation.Metrics["loss"] > 0}");
                    using (var model = session.Model()) Expect(model.ToBytes().Length > 0);
                    return Next.Continue;
                },
                OnCheckpoint = path => {
                    told.Add("checkpoint");
                    return Next.Continue;
                }
            };
            var reason = session.Fit(arrays, arrays, observer, ("epochs", "100"), ("batch-size", "16"), ("lr", "0.1"),
                                     ("out", System.IO.Path.Combine(folder, "run")), ("overwrite", "true"));
            Expect(reason == StopReason.Stopped && told.Contains("evaluation 1 True") && told.Contains("checkpoint"), string.Join(";", told));
            Expect(session.Evaluate(arrays)["accuracy"] == 1);
            Expect(session.MetricTables().Count >= 0 && session.Metrics().Count == 0);
            Expect(session.Predict(arrays)["logits"].Shape[0] == 64);
        }
    }

    private sealed class Rows : DataSource {
        private readonly Exception failure;
        private int left;

        internal Rows(Exception failure) {
            this.failure = failure;
        }

        public override void Begin(long epoch) => left = 3;

        public override Tensor[] Next() {
            if (left-- == 0) return new Tensor[0];
            if (failure != null && left == 0) throw failure;
            var rows = 2 + left;
            return new[] { Tensor.Of("x", new long[] { rows, 4 }, new float[4 * rows]), Tensor.Of("labels", new long[] { rows }, new long[rows]) };
        }

        public override long Batches => 3;
    }

    // Exceptions of callbacks arrive as they were thrown, and leave the session as it was.
    private static void CallbacksThrow() {
        using (var training = Mlp())
        using (var session = new Session(training)) {
            var samples = new List<long>();
            var reason = session.Fit(new Rows(null), null, new Observer {
                OnStep = step => {
                    samples.Add(step.Samples);
                    Expect(step.Tokens == 0 && double.IsNaN(step.Utilization), step.Utilization);
                    GC.Collect();  // batches and delegates stay as long as the library uses them
                    return Next.Continue;
                }
            }, ("epochs", "2"));
            Expect(reason == StopReason.Finished && string.Join(" ", samples) == "4 3 2 4 3 2", string.Join(" ", samples));
            var mine = new InvalidTimeZoneException("mine");
            Expect(Thrown<Exception>(() => session.Fit(new Rows(mine), ("epochs", "2"))) == mine);
            Expect(Thrown<Exception>(() => session.Fit(DataSource.Of(Tensor.Of("x", new long[] { 1, 4 }, new float[4]), Tensor.Of("labels", new long[] { 1 }, 0L)),
                                                       new Rows(mine), null, ("epochs", "2"))) == mine);
            Expect(Thrown<Exception>(() => session.Fit(new Rows(null), null, new Observer { OnStep = step => { throw mine; } }, ("epochs", "2"))) == mine);
            Expect(session.Evaluate(new Rows(null), new Observer { OnNote = Console.WriteLine }).ContainsKey("loss"));
            Thrown<InvalidProgramException>(() => session.Fit(new Rows(null), null, new Observer {
                OnStep = step => {
                    session.Dispose();  // is freed after the call
                    throw new InvalidProgramException();
                }
            }, ("epochs", "2")));
        }
    }

    // A session that works refuses the call of another thread; within a callback it does not work.
    private static void Threads() {
        using (var training = Mlp())
        using (var session = new Session(training)) {
            var arrays = DataSource.Of(Tensor.Of("x", new long[] { 1, 4 }, new float[4]), Tensor.Of("labels", new long[] { 1 }, 0L));
            var refused = new System.Collections.Concurrent.ConcurrentQueue<OnnxTrainException>();
            var observer = new Observer { OnStep = step => refused.IsEmpty ? Next.Continue : Next.Interrupt };
            var trains = new System.Threading.Thread(() => {
                try {
                    session.Fit(arrays, null, observer, ("epochs", "100000000"));
                } catch (OnnxTrainException error) {
                    refused.Enqueue(error);
                }
            });
            trains.Start();
            while (refused.IsEmpty) {
                try {
                    session.Scale("x");
                } catch (OnnxTrainException error) {
                    refused.Enqueue(error);
                }
            }
            trains.Join();
            var first = refused.First();
            Expect(first.Status == Status.Usage && first.Message.Contains("another thread"), first.Message);
        }
    }

    private static void Data() {
        var file = System.IO.Path.Combine(folder, "weights.safetensors");
        Dataset.SaveSafetensors(file, new[] { Tensor.Of("a", new long[] { 2 }, 1f, 2f) }, ("note", "f\u00fcr"));
        Tensor kept;
        var closed = Dataset.OpenSafetensors(file);
        closed.Dispose();
        using (var training = Mlp())
        using (var session = new Session(training)) Closed("Dataset", () => session.Fit(closed, ("epochs", "1")));
        Closed("Dataset", () => closed.Metadata.ToString());
        using (var dataset = Dataset.OpenSafetensors(file)) {
            Expect(dataset.Metadata["note"] == "f\u00fcr");
            kept = dataset.Tensors[0];
            Expect(kept.Name == "a" && kept.ToArray<float>()[1] == 2 && kept.AsReadOnlySpan<float>()[0] == 1);
            Thrown<InvalidOperationException>(() => kept.AsSpan<float>());
        }
        Closed("Dataset", () => kept.ToArray<float>());
        using (var training = Digits())
        using (var session = new Session(training))
        using (var dataset = Dataset.Open(Path("models/data/digits_test.npz"), session)) {
            Expect(dataset.Samples == 360 && dataset.BatchesOf(100) == 4);
        }
        Expect(Thrown<OnnxTrainException>(() => Dataset.Open("no.npz")).Code == "OT4001");
    }

    private static void Texts() {
        using (var gpt = Model.Load(Path("models/gpt.onnx")))
        using (var session = new Session(gpt)) {
            var texts = session.Generate(new[] { new long[] { 1, 2, 3 }, new long[] { 4 } }, null, ("tokens", "4"), ("seed", "1"));
            Expect(texts.Length == 2 && texts[0].Length == 4 && session.GenerateNote == "", session.GenerateNote);
            var ended = session.Generate(new[] { new long[] { 1, 2, 3 } }, (text, token) => Next.Stop, ("tokens", "4"), ("seed", "1"));
            Expect(ended[0].Length == 1 && ended[0][0] == texts[0][0]);
            var one = session.Generate(new[] { new long[] { 1, 2, 3 }, new long[] { 4 } },
                                       (text, token) => text == 0 ? Next.EndText : Next.Continue, ("tokens", "4"), ("seed", "1"));
            Expect(one[0].Length == 1 && one[1].Length == 4, one[1].Length);
            var mine = new InvalidTimeZoneException("mine");
            Expect(Thrown<Exception>(() => session.Generate(new[] { new long[] { 1 } }, (text, token) => { throw mine; })) == mine);
            using (var training = gpt.Build(("loss", "cross_entropy"), ("optimizer", "sgd")))
            using (var learning = new Session(training)) {
                var text = Enumerable.Range(0, 129).Select(i => (long)(i % 128)).ToArray();
                Func<string, int, Tensor> rows = (name, from) => Tensor.Of(name, new long[] { 1, 128 }, text.Skip(from).Take(128).ToArray());
                long tokens = 0;
                learning.Fit(DataSource.Of(rows("tokens", 0), rows("labels", 1)), null, new Observer {
                    OnStep = step => {
                        tokens = step.Tokens;
                        return Next.Continue;
                    }
                }, ("steps", "1"));
                Expect(tokens == 128, tokens);
            }
        }
    }

    // 1,000 sessions leak nothing: the resident memory of the process stays.
    private static void Sessions() {
        using (var training = Mlp()) {
            var rows = Tensor.Of("x", new long[] { 2, 4 }, new float[8]);
            var labels = Tensor.Of("labels", new long[] { 2 }, 0L, 1L);
            long before = 0;
            for (var i = 0; i < 1200; ++i) {
                if (i == 200) before = Resident();
                var session = new Session(training, ("threads", "1"));
                session.Run("step", rows, labels).Scalar<float>("loss");
                session.Model().Dispose();
                if (i % 2 == 0) session.Dispose();  // the finalizer frees the others
                if (i % 20 == 0) GC.Collect();
                Thrown<OnnxTrainException>(() => new Session(training, ("speed", "1")));
            }
            var grown = Resident() - before;
            Console.WriteLine($"1,000 sessions: {grown / 1024} KiB more");
            Expect(grown < 2 << 20, grown);
        }
    }

    private static long Resident() {
        for (var i = 0; i < 3; ++i) {
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        return long.Parse(File.ReadAllText("/proc/self/statm").Split(' ')[1]) * 4096;
    }
}
