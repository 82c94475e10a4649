using System;
using System.Collections;
using System.Collections.Generic;

namespace OnnxTrain {
    /// <summary>
    /// A dense tensor in row-major order. Those that a program makes refer to an array, or to memory, which the library
    /// reads in place. Those that the library gives refer to its memory without a copy: outputs are valid until the next
    /// call with their session, arrays of a dataset as long as that is open. Address, AsSpan and ToArray throw after that;
    /// a span or address that was taken before must not be used then, nor after the session has been finalized.
    /// </summary>
    public sealed class Tensor {
        private readonly IntPtr address;
        private readonly Action validity;

        internal Tensor(string name, ElementType type, long[] shape, IntPtr address, Action validity) {
            Name = name;
            Type = type;
            Dimensions = shape;
            this.address = address;
            this.validity = validity;
        }

        private Tensor(string name, ElementType type, long[] shape, Array array) {
            Name = name ?? throw new ArgumentNullException(nameof(name));
            Type = type;
            Dimensions = Copy(shape);
            Array = array ?? throw new ArgumentNullException("values");
        }

        /// <summary>A tensor over an array, without a copy. It is not to be written to while a call reads it.</summary>
        public static Tensor Of<T>(string name, long[] shape, params T[] values) where T : struct =>
            Of(name, TypeOf(typeof(T)), shape, values);

        /// <summary>The same with another type: ushort for Float16 and BFloat16, byte for Bool.</summary>
        public static Tensor Of<T>(string name, ElementType type, long[] shape, T[] values) where T : struct {
            if (System.Runtime.InteropServices.Marshal.SizeOf(typeof(T)) != SizeOf(type) || !Holds(type, typeof(T))) {
                throw new ArgumentException($"'{name}' is of {type}, its array of {typeof(T).Name}");
            }
            var tensor = new Tensor(name, type, shape, values);
            if (tensor.Count != values.LongLength) {
                throw new ArgumentException(
                    $"the array of '{name}' has {values.LongLength} elements, its shape [{string.Join(", ", shape)}] {tensor.Count}");
            }
            return tensor;
        }

        /// <summary>A scalar: Scalar("learning_rate", 1e-3f).</summary>
        public static Tensor Scalar<T>(string name, T value) where T : struct => Of(name, new long[0], new[] { value });

        /// <summary>A tensor over memory of the program, which holds as many elements as the shape says.</summary>
        public static Tensor At(string name, ElementType type, long[] shape, IntPtr memory) =>
            new Tensor(name, type, Copy(shape), memory, null);

        /// <summary>The same over memory of the session's device.</summary>
        public static Tensor OnDevice(string name, ElementType type, long[] shape, IntPtr memory) =>
            new Tensor(name, type, Copy(shape), memory, null) { IsOnDevice = true };

        public string Name { get; }
        public ElementType Type { get; }
        public IReadOnlyList<long> Shape => Dimensions;
        public bool IsOnDevice { get; private set; }
        /// <summary>Of mapped files, a write to which would end the process.</summary>
        public bool IsReadOnly { get; internal set; }

        /// <summary>The number of elements.</summary>
        public long Count {
            get {
                long count = 1;
                foreach (var size in Dimensions) {
                    if (size < 0) throw new ArgumentException($"the shape of '{Name}' has the size {size}");
                    if (size > 0 && count > long.MaxValue / 8 / size) {  // an element has at most 8 bytes
                        throw new ArgumentException($"the shape [{string.Join(", ", Dimensions)}] of '{Name}' has more elements than a memory holds");
                    }
                    count *= size;
                }
                return count;
            }
        }

        /// <summary>Where the elements are; of a tensor of the library or over memory.</summary>
        public IntPtr Address {
            get {
                validity?.Invoke();
                return address;
            }
        }

        /// <summary>The elements without a copy. Those of a dataset are not to be written to: AsReadOnlySpan.</summary>
        public Span<T> AsSpan<T>() where T : struct {
            if (IsReadOnly) throw new InvalidOperationException($"'{Name}' is read-only: AsReadOnlySpan gives its elements");
            return Elements<T>();
        }

        /// <summary>The elements without a copy, to be read.</summary>
        public ReadOnlySpan<T> AsReadOnlySpan<T>() where T : struct => Elements<T>();

        private unsafe Span<T> Elements<T>() where T : struct {
            if (!Holds(Type, typeof(T))) throw new InvalidOperationException($"'{Name}' is of {Type}, not of {typeof(T).Name}");
            if (Array != null) return new Span<T>((T[])Array);
            if (IsOnDevice) throw new InvalidOperationException($"'{Name}' is in the memory of a device");
            return new Span<T>((void*)Address, checked((int)Count));
        }

        /// <summary>A copy of the elements.</summary>
        public T[] ToArray<T>() where T : struct => Elements<T>().ToArray();

        public override string ToString() => $"{Name} {Type}[{string.Join(", ", Dimensions)}]";

        private static long[] Copy(long[] shape) => (long[])(shape ?? throw new ArgumentNullException(nameof(shape))).Clone();

        internal long[] Dimensions { get; }
        internal Array Array { get; }

        internal static int SizeOf(ElementType type) {
            switch (type) {
                case ElementType.UInt8:
                case ElementType.Int8:
                case ElementType.Bool: return 1;
                case ElementType.UInt16:
                case ElementType.Int16:
                case ElementType.Float16:
                case ElementType.BFloat16: return 2;
                case ElementType.Float:
                case ElementType.Int32:
                case ElementType.UInt32: return 4;
                default: return 8;
            }
        }

        internal static ElementType TypeOf(Type type) {
            if (type == typeof(float)) return ElementType.Float;
            if (type == typeof(double)) return ElementType.Double;
            if (type == typeof(byte)) return ElementType.UInt8;
            if (type == typeof(sbyte)) return ElementType.Int8;
            if (type == typeof(ushort)) return ElementType.UInt16;
            if (type == typeof(short)) return ElementType.Int16;
            if (type == typeof(int)) return ElementType.Int32;
            if (type == typeof(uint)) return ElementType.UInt32;
            if (type == typeof(long)) return ElementType.Int64;
            if (type == typeof(ulong)) return ElementType.UInt64;
            throw new ArgumentException($"no element type is {type.Name}");
        }

        internal static bool Holds(ElementType type, Type element) {
            switch (type) {
                case ElementType.Bool: return element == typeof(byte);
                case ElementType.Float16:
                case ElementType.BFloat16: return element == typeof(ushort);
                default: return TypeOf(element) == type;
            }
        }
    }

    /// <summary>The outputs of a run, in the session's memory: valid until the next call with the session.</summary>
    public sealed class Outputs : IReadOnlyList<Tensor> {
        private readonly Tensor[] tensors;
        private readonly Port[] ports;

        internal Outputs(Tensor[] tensors, Port[] ports) {
            this.tensors = tensors;
            this.ports = ports;
        }

        public int Count => tensors.Length;
        public Tensor this[int i] => tensors[i];
        /// <summary>The output of this name or, if there is none, of this role: "loss".</summary>
        public Tensor this[string name] {
            get {
                var named = Find(name);
                if (named != null) return named;
                foreach (var port in ports) {
                    if (port.Role == name && Find(port.Name) != null) return Find(port.Name);
                }
                throw new KeyNotFoundException($"the run has no output '{name}'");
            }
        }

        /// <summary>The first element of an output.</summary>
        public T Scalar<T>(string name) where T : struct => this[name].AsReadOnlySpan<T>()[0];
        public IEnumerator<Tensor> GetEnumerator() => ((IEnumerable<Tensor>)tensors).GetEnumerator();
        IEnumerator IEnumerable.GetEnumerator() => tensors.GetEnumerator();

        private Tensor Find(string name) => System.Array.Find(tensors, tensor => tensor.Name == name);
    }
}
