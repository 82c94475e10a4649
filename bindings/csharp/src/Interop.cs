using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace OnnxTrain {
    // Handles of the library: freed once, after Dispose() or by the finalizer, and not during a call.
    internal abstract class Handle : SafeHandle {
        protected Handle(IntPtr address) : base(IntPtr.Zero, true) {
            SetHandle(address);
        }

        public override bool IsInvalid => handle == IntPtr.Zero;

        // The handle for a call, unless its owner has been disposed.
        internal static T Open<T>(T handle, string owner) where T : Handle {
            if (!handle.IsClosed) return handle;
            throw new ObjectDisposedException(owner, $"the {owner.ToLowerInvariant()} is closed");
        }
    }

    internal sealed class ModelHandle : Handle {
        internal ModelHandle(IntPtr address) : base(address) {}

        // A null model.
        internal static readonly ModelHandle None = new ModelHandle(IntPtr.Zero);

        protected override bool ReleaseHandle() {
            Native.onnx_train_model_free(handle);
            return true;
        }
    }

    internal sealed class ReportHandle : Handle {
        internal ReportHandle(IntPtr address) : base(address) {}

        protected override bool ReleaseHandle() {
            Native.onnx_train_report_free(handle);
            return true;
        }
    }

    internal sealed class SessionHandle : Handle {
        internal SessionHandle(IntPtr address) : base(address) {}

        // A null session.
        internal static readonly SessionHandle None = new SessionHandle(IntPtr.Zero);

        protected override bool ReleaseHandle() {
            Native.onnx_train_session_free(handle);
            return true;
        }
    }

    internal sealed class DatasetHandle : Handle {
        internal DatasetHandle(IntPtr address) : base(address) {}

        protected override bool ReleaseHandle() {
            Native.onnx_train_dataset_free(handle);
            return true;
        }
    }

    // What a call is given in the form of C: texts, options, tensors. It lives until Dispose(), and arrays of the
    // program that tensors refer to stay where they are until then.
    internal sealed unsafe class Arguments : IDisposable {
        private readonly List<IntPtr> blocks = new List<IntPtr>();
        private readonly List<GCHandle> pinned = new List<GCHandle>();

        internal Arguments() {
            Library.Load();
        }

        internal byte* Text(string text) {
            if (text == null) throw new ArgumentNullException(nameof(text));
            if (text.IndexOf('\0') >= 0) throw new ArgumentException("a text has the character 0");
            var length = Encoding.UTF8.GetByteCount(text);
            var memory = (byte*)Block(length + 1L);
            fixed (char* characters = text) Encoding.UTF8.GetBytes(characters, text.Length, memory, length);
            memory[length] = 0;
            return memory;
        }

        internal byte* TextOrNull(string text) => text == null ? null : Text(text);

        internal onnx_train_option* Options(ValueTuple<string, string>[] options) {
            if (options == null) throw new ArgumentNullException(nameof(options));
            var list = (onnx_train_option*)Block((long)options.Length * sizeof(onnx_train_option));
            for (var i = 0; i < options.Length; ++i) {
                list[i] = new onnx_train_option { name = Text(options[i].Item1), value = Text(options[i].Item2) };
            }
            return list;
        }

        internal onnx_train_tensor* Tensors(IReadOnlyList<Tensor> tensors) {
            if (tensors == null) throw new ArgumentNullException(nameof(tensors));
            var list = (onnx_train_tensor*)Block((long)tensors.Count * sizeof(onnx_train_tensor));
            for (var i = 0; i < tensors.Count; ++i) {
                var tensor = tensors[i] ?? throw new ArgumentNullException(nameof(tensors));
                var shape = (long*)Block(8L * tensor.Dimensions.Length);
                for (var d = 0; d < tensor.Dimensions.Length; ++d) shape[d] = tensor.Dimensions[d];
                list[i] = new onnx_train_tensor {
                    name = Text(tensor.Name), type = (int)tensor.Type, rank = tensor.Dimensions.Length, shape = shape,
                    data = Memory(tensor), memory = tensor.IsOnDevice ? onnx_train_memory.ONNX_TRAIN_DEVICE_MEMORY
                                                                      : onnx_train_memory.ONNX_TRAIN_HOST_MEMORY
                };
            }
            return list;
        }

        internal void* Block(long bytes) {
            var block = Marshal.AllocHGlobal((IntPtr)Math.Max(bytes, 1));
            blocks.Add(block);
            return (void*)block;
        }

        internal void* Memory(Tensor tensor) {
            if (tensor.Array == null) {
                var memory = (void*)tensor.Address;
                var size = Tensor.SizeOf(tensor.Type);
                if (tensor.IsOnDevice || (ulong)memory % (ulong)size == 0) return memory;
                var copy = Block(tensor.Count * size);  // of a mapped file, in which arrays may begin anywhere
                Buffer.MemoryCopy(memory, copy, tensor.Count * size, tensor.Count * size);
                return copy;
            }
            var handle = GCHandle.Alloc(tensor.Array, GCHandleType.Pinned);
            pinned.Add(handle);
            return (void*)handle.AddrOfPinnedObject();
        }

        public void Dispose() {
            foreach (var block in blocks) Marshal.FreeHGlobal(block);
            foreach (var handle in pinned) handle.Free();
            blocks.Clear();
            pinned.Clear();
        }
    }

    internal static unsafe class Results {
        internal static UIntPtr Size(long count) => (UIntPtr)(ulong)count;

        // Throws OnnxTrainException with the text of the library unless the call succeeded.
        internal static void Check(int status) {
            if (status == onnx_train_status.ONNX_TRAIN_OK) return;
            throw new OnnxTrainException((Status)status, Text(Native.onnx_train_last_error()),
                                         Text(Native.onnx_train_last_error_code()));
        }

        // Null for null.
        internal static string Text(byte* text) {
            if (text == null) return null;
            var length = 0;
            while (text[length] != 0) ++length;
            return length == 0 ? "" : Encoding.UTF8.GetString(text, length);
        }

        internal static string[] Texts(byte** texts, UIntPtr count) {
            var list = new string[(int)count];
            for (var i = 0; i < list.Length; ++i) list[i] = Text(texts[i]);
            return list;
        }

        internal static long[] Shape(long* shape, int rank) {
            if (rank < 0) return null;
            var sizes = new long[rank];
            for (var i = 0; i < rank; ++i) sizes[i] = shape[i];
            return sizes;
        }

        internal static Tensor[] Tensors(onnx_train_tensor* tensors, UIntPtr count, Action validity) {
            var list = new Tensor[(int)count];
            for (var i = 0; i < list.Length; ++i) {
                list[i] = new Tensor(Text(tensors[i].name), (ElementType)tensors[i].type,
                                     Shape(tensors[i].shape, tensors[i].rank), (IntPtr)tensors[i].data, validity);
            }
            return list;
        }

        internal static Port[] Ports(onnx_train_port* ports, UIntPtr count) {
            var list = new Port[(int)count];
            for (var i = 0; i < list.Length; ++i) {
                list[i] = new Port(Text(ports[i].name), Text(ports[i].role), Text(ports[i].of), (ElementType)ports[i].type,
                                   Shape(ports[i].shape, ports[i].rank), ports[i].data != null);
            }
            return list;
        }

        internal static Dictionary<string, double> Metrics(onnx_train_metric* metrics, UIntPtr count) {
            var values = new Dictionary<string, double>();
            for (var i = 0; i < (int)count; ++i) values[Text(metrics[i].name)] = metrics[i].value;
            return values;
        }

        internal static Finding[] Findings(onnx_train_finding* found, UIntPtr count) {
            var list = new Finding[(int)count];
            for (var i = 0; i < list.Length; ++i) {
                list[i] = new Finding(Text(found[i].subject), Text(found[i].what), Text(found[i].advice));
            }
            return list;
        }
    }
}
