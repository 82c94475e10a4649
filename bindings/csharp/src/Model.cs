using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace OnnxTrain {
    /// <summary>A forward model, a training model or a checkpoint. Any number of threads may read one.</summary>
    public sealed unsafe class Model : IDisposable {
        private readonly ModelHandle handle;

        internal Model(IntPtr address) {
            handle = new ModelHandle(address);
        }

        internal ModelHandle Handle => OnnxTrain.Handle.Open(handle, nameof(Model));

        /// <summary>Reads an .onnx file; its large tensors are mapped, so it must not be changed while the model lives.</summary>
        public static Model Load(string path) {
            using (var arguments = new Arguments()) {
                IntPtr model;
                Results.Check(Native.onnx_train_model_load(arguments.Text(path), &model));
                return new Model(model);
            }
        }

        public static Model FromBytes(byte[] bytes) {
            if (bytes == null) throw new ArgumentNullException(nameof(bytes));
            Library.Load();
            IntPtr model;
            byte none;
            fixed (byte* data = bytes) {
                Results.Check(Native.onnx_train_model_from_bytes(data == null ? &none : data, Results.Size(bytes.LongLength), &model));
            }
            return new Model(model);
        }

        /// <summary>Writes the model atomically.</summary>
        public void Save(string path) {
            using (var arguments = new Arguments()) Results.Check(Native.onnx_train_model_save(Handle, arguments.Text(path)));
        }

        public byte[] ToBytes() {
            void* data;
            UIntPtr bytes;
            Results.Check(Native.onnx_train_model_to_bytes(Handle, &data, &bytes));
            try {
                var copy = new byte[checked((int)bytes)];
                Marshal.Copy((IntPtr)data, copy, 0, copy.Length);
                return copy;
            } finally {
                Native.onnx_train_free(data);
            }
        }

        /// <summary>Keys and values; those of a training model are in onnx_train.h.</summary>
        public IReadOnlyDictionary<string, string> Metadata {
            get {
                var entries = new Dictionary<string, string>();
                byte* key;
                for (long i = 0;; ++i) {
                    var value = Results.Text(Native.onnx_train_model_metadata(Handle, Results.Size(i), &key));
                    if (value == null) return entries;
                    entries[Results.Text(key)] = value;
                }
            }
        }

        /// <summary>What was guessed, left out or changed when this training model was built.</summary>
        public IReadOnlyList<Finding> Notes {
            get {
                onnx_train_finding* notes;
                var count = Native.onnx_train_model_notes(Handle, &notes);
                return Results.Findings(notes, count);
            }
        }

        /// <summary>A training model: Build(("loss", "cross_entropy"), ("optimizer", "adamw")).</summary>
        public Model Build(params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                IntPtr training;
                Results.Check(Native.onnx_train_model_build(Handle, arguments.Options(options), Results.Size(options.Length), &training));
                return new Model(training);
            }
        }

        /// <summary>The same with a loss that is a model.</summary>
        public Model BuildWithLoss(Model loss, params ValueTuple<string, string>[] options) {
            if (loss == null) throw new ArgumentNullException(nameof(loss));
            using (var arguments = new Arguments()) {
                IntPtr training;
                Results.Check(Native.onnx_train_model_build_with_loss(Handle, loss.Handle, arguments.Options(options),
                                                                      Results.Size(options.Length), &training));
                return new Model(training);
            }
        }

        /// <summary>For data in files, which choose the loss if the options have none; the note says what was chosen.</summary>
        public (Model Training, string Note) BuildForData(string path, params ValueTuple<string, string>[] options) =>
            BuildForData(path ?? throw new ArgumentNullException(nameof(path)), new Tensor[0], options);

        /// <summary>The same for arrays.</summary>
        public (Model Training, string Note) BuildForData(Tensor[] arrays, params ValueTuple<string, string>[] options) =>
            BuildForData(null, arrays, options);

        private (Model, string) BuildForData(string path, Tensor[] arrays, ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                IntPtr training;
                byte* note;
                Results.Check(Native.onnx_train_model_build_for_data(
                    Handle, arguments.TextOrNull(path), arguments.Tensors(arrays), Results.Size(arrays.Length),
                    arguments.Options(options), Results.Size(options.Length), &training, &note));
                return (new Model(training), Results.Text(note));
            }
        }

        /// <summary>The open sizes that the arrays have, for the option "dim".</summary>
        public string Sizes(params Tensor[] arrays) {
            using (var arguments = new Arguments()) {
                byte* sizes;
                Results.Check(Native.onnx_train_model_sizes(Handle, arguments.Tensors(arrays), Results.Size(arrays.Length), &sizes));
                return Results.Text(sizes);
            }
        }

        /// <summary>Whether the model can be trained. Succeeds for one that cannot, too.</summary>
        public Report Check(params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                IntPtr made;
                Results.Check(Native.onnx_train_model_check(Handle, arguments.Options(options), Results.Size(options.Length), &made));
                using (var report = new ReportHandle(made)) {
                    onnx_train_finding* found;
                    var count = Native.onnx_train_report_obstacles(report, &found);
                    var obstacles = Results.Findings(found, count);
                    count = Native.onnx_train_report_findings(report, &found);
                    return new Report {
                        Text = Results.Text(Native.onnx_train_report_text(report)),
                        Loss = Results.Text(Native.onnx_train_report_loss(report)),
                        Failure = Results.Text(Native.onnx_train_report_failure(report)),
                        Obstacles = obstacles,
                        Findings = Results.Findings(found, count)
                    };
                }
            }
        }

        /// <summary>The inference model alone, with the options of the command onnx-train export.</summary>
        public Model Export(params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                IntPtr inference;
                Results.Check(Native.onnx_train_model_export_with(Handle, arguments.Options(options), Results.Size(options.Length), &inference));
                return new Model(inference);
            }
        }

        /// <summary>
        /// Writes the model or the folder of the option "into" with trained weights to `path`; gives what was written, guessed
        /// or left out, in lines.
        /// </summary>
        public string ExportInto(string path, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                byte* note;
                Results.Check(Native.onnx_train_model_export_into(Handle, arguments.Options(options), Results.Size(options.Length),
                                                                  arguments.Text(path), &note));
                return Results.Text(note);
            }
        }

        /// <summary>Writes the adapters in PEFT's format.</summary>
        public void SaveAdapter(string folder) {
            using (var arguments = new Arguments()) Results.Check(Native.onnx_train_model_save_adapter(Handle, arguments.Text(folder)));
        }

        /// <summary>One entry point as a plain ONNX model: each state is an input, its next value an output.</summary>
        public Model Flatten(string entry) {
            using (var arguments = new Arguments()) {
                IntPtr flat;
                Results.Check(Native.onnx_train_model_flatten(Handle, arguments.Text(entry), &flat));
                return new Model(flat);
            }
        }

        /// <summary>The two passes, for programs with a loss and an optimizer of their own.</summary>
        public (Model Forward, Model Backward) Differentiate(params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                IntPtr forward, backward;
                Results.Check(Native.onnx_train_model_differentiate(Handle, arguments.Options(options), Results.Size(options.Length),
                                                                    &forward, &backward));
                return (new Model(forward), new Model(backward));
            }
        }

        /// <summary>"outputs", "gradient", "vjp", "jvp" or "hvp" as a model.</summary>
        public Model Derivative(string kind, params ValueTuple<string, string>[] options) => Derivative(kind, null, options);

        /// <summary>The same of a loss that is a model.</summary>
        public Model Derivative(string kind, Model loss, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                IntPtr derivative;
                Results.Check(Native.onnx_train_model_derivative(Handle, arguments.Text(kind), loss?.Handle ?? ModelHandle.None,
                                                                 arguments.Options(options), Results.Size(options.Length), &derivative));
                return new Model(derivative);
            }
        }

        /// <summary>A copy with other weights. Strict: a name that the model lacks is an error.</summary>
        public Model WithWeights(bool strict, params Tensor[] weights) {
            using (var arguments = new Arguments()) {
                IntPtr changed;
                Results.Check(Native.onnx_train_model_with_weights(Handle, arguments.Tensors(weights), Results.Size(weights.Length),
                                                                   strict ? 1 : 0, &changed));
                return new Model(changed);
            }
        }

        public void Dispose() => handle.Dispose();
    }
}
