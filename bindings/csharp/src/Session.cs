using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;

namespace OnnxTrain {
    /// <summary>
    /// A training model's state on a device, and the plans that run it. One thread at a time: a call from another one while
    /// it works throws. Dispose() frees it; the finalizer frees one that was not disposed.
    /// </summary>
    public sealed unsafe class Session : IDisposable {
        private readonly SessionHandle handle;
        private long calls;

        public Session(Model training, params ValueTuple<string, string>[] options) {
            if (training == null) throw new ArgumentNullException(nameof(training));
            using (var arguments = new Arguments()) {
                IntPtr session;
                Results.Check(Native.onnx_train_session_create(training.Handle, arguments.Options(options),
                                                               Results.Size(options.Length), &session));
                handle = new SessionHandle(session);
            }
        }

        internal SessionHandle Handle => OnnxTrain.Handle.Open(handle, nameof(Session));

        /// <summary>Runs an entry point: "step", "evaluate", "predict", "accumulate", "apply". Inputs are read in place.</summary>
        public Outputs Run(string entry, params Tensor[] inputs) {
            using (var arguments = new Arguments()) {
                onnx_train_tensor* outputs;
                UIntPtr count;
                Results.Check(Native.onnx_train_session_run(Called, arguments.Text(entry), arguments.Tensors(inputs),
                                                            Results.Size(inputs.Length), &outputs, &count));
                GC.KeepAlive(inputs);
                return Given(outputs, count, OutputPorts(entry));
            }
        }

        /// <summary>Trains until a limit is reached or a callback ends it; `evaluation` and `observer` may be null.</summary>
        public StopReason Fit(DataSource training, DataSource evaluation, Observer observer, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments())
            using (var callbacks = new Callbacks(training ?? throw new ArgumentNullException(nameof(training)), observer))
            using (var other = evaluation == null ? null : new Callbacks(evaluation, null, null, callbacks)) {
                var data = callbacks.Data();
                var heldOut = other?.Data() ?? default(onnx_train_data);
                var view = callbacks.View;
                int reason;
                callbacks.Finish(Native.onnx_train_fit(Called, &data, other == null ? null : &heldOut, arguments.Options(options),
                                                       Results.Size(options.Length), &view, &reason));
                return (StopReason)reason;
            }
        }

        public StopReason Fit(DataSource training, params ValueTuple<string, string>[] options) => Fit(training, null, null, options);

        /// <summary>Loss and metrics over all data.</summary>
        public IReadOnlyDictionary<string, double> Evaluate(DataSource data, params ValueTuple<string, string>[] options) =>
            Evaluate(data, null, options);

        /// <summary>The same with an observer, whose OnNote is called.</summary>
        public IReadOnlyDictionary<string, double> Evaluate(DataSource data, Observer observer, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments())
            using (var callbacks = new Callbacks(data ?? throw new ArgumentNullException(nameof(data)), observer)) {
                var view = callbacks.Data();
                var told = callbacks.View;
                onnx_train_metric* metrics;
                UIntPtr count;
                callbacks.Finish(Native.onnx_train_evaluate(Called, &view, arguments.Options(options), Results.Size(options.Length),
                                                            &told, &metrics, &count));
                return Results.Metrics(metrics, count);
            }
        }

        /// <summary>The outputs of "predict" for all samples of arrays or files, in their order.</summary>
        public Outputs Predict(DataSource data, params ValueTuple<string, string>[] options) => Predict(data, null, options);

        /// <summary>The same with an observer, whose OnNote is called.</summary>
        public Outputs Predict(DataSource data, Observer observer, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments())
            using (var callbacks = new Callbacks(data ?? throw new ArgumentNullException(nameof(data)), observer)) {
                var view = callbacks.Data();
                var told = callbacks.View;
                onnx_train_tensor* outputs;
                UIntPtr count;
                callbacks.Finish(Native.onnx_train_predict(Called, &view, arguments.Options(options), Results.Size(options.Length),
                                                           &told, &outputs, &count));
                return Given(outputs, count, OutputPorts("predict"));
            }
        }

        /// <summary>The metrics that are made of statistics, outputs of "evaluate" of one run or summed over several.</summary>
        public IReadOnlyDictionary<string, double> Metrics(params Tensor[] statistics) {
            using (var arguments = new Arguments()) {
                onnx_train_metric* metrics;
                UIntPtr count;
                Results.Check(Native.onnx_train_session_metrics(Called, arguments.Tensors(statistics),
                                                                Results.Size(statistics.Length), &metrics, &count));
                return Results.Metrics(metrics, count);
            }
        }

        /// <summary>What the metrics of the last Evaluate() or Metrics() say by class.</summary>
        public Outputs MetricTables() {
            onnx_train_tensor* tables;
            UIntPtr count;
            Results.Check(Native.onnx_train_session_metric_tables(Called, &tables, &count));
            return Given(tables, count, new Port[0]);
        }

        /// <summary>
        /// The tokens that a causal language model writes after each prompt. `onToken`, which may be null, gets the number of
        /// the text and the token; Next.EndText completes this text, and Next.Stop ends all.
        /// </summary>
        public long[][] Generate(long[][] prompts, Func<int, long, Next> onToken, params ValueTuple<string, string>[] options) {
            if (prompts == null || Array.IndexOf(prompts, null) >= 0) throw new ArgumentNullException(nameof(prompts));
            var texts = new List<long>[prompts.Length];
            for (var i = 0; i < texts.Length; ++i) texts[i] = new List<long>();
            Func<int, long, Next> drawn = (text, token) => {
                texts[text].Add(token);
                return onToken == null ? Next.Continue : onToken(text, token);
            };
            using (var arguments = new Arguments())
            using (var callbacks = new Callbacks(null, null, drawn)) {
                var begins = (long**)arguments.Block((long)prompts.Length * sizeof(long*));
                var lengths = (UIntPtr*)arguments.Block((long)prompts.Length * sizeof(UIntPtr));
                for (var i = 0; i < prompts.Length; ++i) {
                    begins[i] = (long*)arguments.Block(8L * prompts[i].Length);
                    Marshal.Copy(prompts[i], 0, (IntPtr)begins[i], prompts[i].Length);
                    lengths[i] = Results.Size(prompts[i].Length);
                }
                callbacks.Finish(Native.onnx_train_generate(Called, begins, lengths, Results.Size(prompts.Length),
                                                            arguments.Options(options), Results.Size(options.Length),
                                                            callbacks.TokenFunction, callbacks.User));
            }
            return Array.ConvertAll(texts, text => text.ToArray());
        }

        /// <summary>Why the last Generate() was not as fast as with a cache; "" if it was.</summary>
        public string GenerateNote => Results.Text(Native.onnx_train_generate_note(Handle));

        /// <summary>The entry points with outputs, "predict" first.</summary>
        public IReadOnlyList<string> Entries {
            get {
                byte** names;
                UIntPtr count;
                Results.Check(Native.onnx_train_session_entries(Handle, &names, &count));
                return Results.Texts(names, count);
            }
        }

        public Port[] InputPorts(string entry) {
            using (var arguments = new Arguments()) {
                onnx_train_port* ports;
                UIntPtr count;
                Results.Check(Native.onnx_train_session_inputs(Handle, arguments.Text(entry), &ports, &count));
                return Results.Ports(ports, count);
            }
        }

        public Port[] OutputPorts(string entry) {
            using (var arguments = new Arguments()) {
                onnx_train_port* ports;
                UIntPtr count;
                Results.Check(Native.onnx_train_session_outputs(Handle, arguments.Text(entry), &ports, &count));
                return Results.Ports(ports, count);
            }
        }

        /// <summary>The states with role, type and shape.</summary>
        public Port[] StatePorts {
            get {
                onnx_train_port* ports;
                UIntPtr count;
                Results.Check(Native.onnx_train_session_state_ports(Handle, &ports, &count));
                return Results.Ports(ports, count);
            }
        }

        /// <summary>The names of the state: weights, optimizer slots, statistics, keys.</summary>
        public IReadOnlyList<string> States {
            get {
                byte** names;
                UIntPtr count;
                Results.Check(Native.onnx_train_session_states(Handle, &names, &count));
                return Results.Texts(names, count);
            }
        }

        /// <summary>What a run of an entry point executes, for the options "batch" and "dim". Runs nothing.</summary>
        public Plan Plan(string entry, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                onnx_train_plan plan;
                Results.Check(Native.onnx_train_session_plan(Called, arguments.Text(entry), arguments.Options(options),
                                                             Results.Size(options.Length), &plan));
                return new Plan {
                    Text = Results.Text(plan.text), Json = Results.Text(plan.json), ArenaBytes = (ulong)plan.arena_bytes,
                    WorkspaceBytes = (ulong)plan.workspace_bytes, ConstantBytes = (ulong)plan.constant_bytes
                };
            }
        }

        /// <summary>What data of an input are multiplied by before Run().</summary>
        public double Scale(string input) {
            using (var arguments = new Arguments()) {
                double scale;
                Results.Check(Native.onnx_train_session_scale(Called, arguments.Text(input), &scale));
                return scale;
            }
        }

        /// <summary>Along which axis an input holds its samples.</summary>
        public int SampleAxis(string entry, string input) {
            using (var arguments = new Arguments()) {
                int axis;
                Results.Check(Native.onnx_train_session_sample_axis(Called, arguments.Text(entry), arguments.Text(input), &axis));
                return axis;
            }
        }

        /// <summary>A copy of a state.</summary>
        public T[] Get<T>(string name) where T : struct {
            using (var arguments = new Arguments()) {
                var state = State<T>(name);
                var values = new T[state.Count];
                var copy = Tensor.Of(name, state.Type, state.Dimensions, values);
                Results.Check(Native.onnx_train_session_get(Called, arguments.Text(name), arguments.Memory(copy), SizeOf(state)));
                return values;
            }
        }

        /// <summary>Sets a state.</summary>
        public void Set<T>(string name, T[] values) where T : struct {
            using (var arguments = new Arguments()) {
                var state = State<T>(name);
                var given = Tensor.Of(name, state.Type, state.Dimensions, values);
                Results.Check(Native.onnx_train_session_set(Called, arguments.Text(name), arguments.Memory(given), SizeOf(state)));
            }
        }

        /// <summary>Sets a state from memory of the session's device.</summary>
        public void SetFromDevice(string name, IntPtr memory, long bytes) {
            using (var arguments = new Arguments()) {
                Results.Check(Native.onnx_train_session_set_from_device(Called, arguments.Text(name), (void*)memory, Results.Size(bytes)));
            }
        }

        /// <summary>
        /// A state where the session keeps it, without a copy: to be read and written while the session is idle, and not
        /// after it has been disposed. The session must stay reachable: GC.KeepAlive, or a using statement around its use.
        /// </summary>
        public Span<T> Span<T>(string name) where T : struct {
            State<T>(name);
            return MemoryMarshal.Cast<byte, T>(Bytes(name));
        }

        /// <summary>The same as bytes, whatever the type of the state.</summary>
        public Span<byte> Bytes(string name) {
            var state = State(name);
            var address = Address(name, out var onHost);
            if (!onHost) throw new InvalidOperationException($"state '{name}' is not in the host's memory: Get() copies it");
            return new Span<byte>((void*)address, checked((int)(state.Count * Tensor.SizeOf(state.Type))));
        }

        /// <summary>The address of a state in the memory of the session's device: fixed as long as the session lives.</summary>
        public IntPtr Address(string name, out bool onHost) {
            using (var arguments = new Arguments()) {
                void* address;
                int host;
                Results.Check(Native.onnx_train_session_address(Handle, arguments.Text(name), &address, &host));
                onHost = host != 0;
                return (IntPtr)address;
            }
        }

        public Device Device {
            get {
                onnx_train_device device;
                Results.Check(Native.onnx_train_session_device(Handle, &device));
                return new Device { Type = device.type, Id = device.id, Stream = (IntPtr)device.stream };
            }
        }

        /// <summary>This process's number among those that train together, from 0 on, and how many they are.</summary>
        public (int Rank, int Ranks) Ranks {
            get {
                int rank, ranks;
                Results.Check(Native.onnx_train_session_ranks(Handle, &rank, &ranks));
                return (rank, ranks);
            }
        }

        /// <summary>Exchanges the values of a state with those of another session of the same model.</summary>
        public void Swap(string name, Session other) {
            if (other == null) throw new ArgumentNullException(nameof(other));
            using (var arguments = new Arguments()) Results.Check(Native.onnx_train_session_swap(Called, other.Called, arguments.Text(name)));
        }

        /// <summary>Reads an adapter in PEFT's format and keeps it as `name`.</summary>
        public void LoadAdapter(string name, string folder) {
            using (var arguments = new Arguments()) {
                Results.Check(Native.onnx_train_session_load_adapter(Called, arguments.Text(name), arguments.Text(folder)));
            }
        }

        /// <summary>Gives the states the values of an adapter.</summary>
        public void SetAdapter(string name) {
            using (var arguments = new Arguments()) Results.Check(Native.onnx_train_session_set_adapter(Called, arguments.Text(name)));
        }

        /// <summary>Begins anew, with weights drawn if the model was built with the option "init".</summary>
        public void Initialize(ulong seed) => Results.Check(Native.onnx_train_session_initialize(Called, seed));

        /// <summary>The training model with the present state: save it for a checkpoint, export it for inference.</summary>
        public Model Model() {
            IntPtr model;
            Results.Check(Native.onnx_train_session_model(Called, &model));
            return new Model(model);
        }

        public void Dispose() => handle.Dispose();

        // The handle for a call after which outputs of earlier ones are not valid.
        private SessionHandle Called {
            get {
                Interlocked.Increment(ref calls);
                return Handle;
            }
        }

        private Outputs Given(onnx_train_tensor* tensors, UIntPtr count, Port[] ports) {
            var made = calls;
            return new Outputs(Results.Tensors(tensors, count, () => {
                OnnxTrain.Handle.Open(handle, nameof(Session));
                if (calls != made) throw new InvalidOperationException("outputs are valid until the next call with the session");
            }), ports);
        }

        // Type and shape of a state.
        private Tensor State(string name) {
            using (var arguments = new Arguments()) {
                onnx_train_tensor state;
                Results.Check(Native.onnx_train_session_state(Handle, arguments.Text(name), &state));
                return new Tensor(name, (ElementType)state.type, Results.Shape(state.shape, state.rank), IntPtr.Zero, null);
            }
        }

        // The same of a state whose elements are T.
        private Tensor State<T>(string name) where T : struct {
            var state = State(name);
            if (Tensor.Holds(state.Type, typeof(T))) return state;
            throw new InvalidOperationException($"state '{name}' is of {state.Type}, not of {typeof(T).Name}");
        }

        private static UIntPtr SizeOf(Tensor state) => Results.Size(state.Count * Tensor.SizeOf(state.Type));
    }
}
