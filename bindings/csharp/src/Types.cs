using System;
using System.Collections.Generic;

namespace OnnxTrain {
    /// <summary>The kind of a failure.</summary>
    public enum Status {
        Ok = onnx_train_status.ONNX_TRAIN_OK,
        /// <summary>An argument that is wrong whatever the model holds.</summary>
        Usage = onnx_train_status.ONNX_TRAIN_USAGE,
        /// <summary>A file that cannot be read or written, or does not hold what it should.</summary>
        File = onnx_train_status.ONNX_TRAIN_FILE,
        /// <summary>The model, or what is asked of it.</summary>
        Unsupported = onnx_train_status.ONNX_TRAIN_UNSUPPORTED,
        /// <summary>Inputs of a run: names, types, shapes, numbers out of range.</summary>
        Data = onnx_train_status.ONNX_TRAIN_DATA,
        /// <summary>Not enough memory.</summary>
        Memory = onnx_train_status.ONNX_TRAIN_MEMORY,
        /// <summary>A device that is not there, or failed.</summary>
        Device = onnx_train_status.ONNX_TRAIN_DEVICE,
        /// <summary>A bug of the library.</summary>
        Internal = onnx_train_status.ONNX_TRAIN_INTERNAL
    }

    /// <summary>A call failed. The message is the line that the command onnx-train prints.</summary>
    public sealed class OnnxTrainException : Exception {
        internal OnnxTrainException(Status status, string message, string code) : base(message) {
            Status = status;
            Code = code;
        }

        public Status Status { get; }
        /// <summary>"OT1001", which stays the same from version to version; "" for a failure without a code.</summary>
        public string Code { get; }
    }

    /// <summary>The type of a tensor's elements, with ONNX's numbers.</summary>
    public enum ElementType {
        Float = onnx_train_type.ONNX_TRAIN_FLOAT,
        UInt8 = onnx_train_type.ONNX_TRAIN_UINT8,
        Int8 = onnx_train_type.ONNX_TRAIN_INT8,
        UInt16 = onnx_train_type.ONNX_TRAIN_UINT16,
        Int16 = onnx_train_type.ONNX_TRAIN_INT16,
        Int32 = onnx_train_type.ONNX_TRAIN_INT32,
        Int64 = onnx_train_type.ONNX_TRAIN_INT64,
        /// <summary>A byte, 0 or 1.</summary>
        Bool = onnx_train_type.ONNX_TRAIN_BOOL,
        /// <summary>Half precision; its bits are a ushort.</summary>
        Float16 = onnx_train_type.ONNX_TRAIN_FLOAT16,
        Double = onnx_train_type.ONNX_TRAIN_DOUBLE,
        UInt32 = onnx_train_type.ONNX_TRAIN_UINT32,
        UInt64 = onnx_train_type.ONNX_TRAIN_UINT64,
        /// <summary>The upper half of a float; its bits are a ushort.</summary>
        BFloat16 = onnx_train_type.ONNX_TRAIN_BFLOAT16
    }

    /// <summary>What a callback of a training, or of texts that are written, returns.</summary>
    public enum Next {
        Continue = onnx_train_next.ONNX_TRAIN_CONTINUE,
        /// <summary>End the training after this step, with a last evaluation.</summary>
        Stop = onnx_train_next.ONNX_TRAIN_STOP,
        /// <summary>End it after this step, without one: a resumed training goes on as if never stopped.</summary>
        Interrupt = onnx_train_next.ONNX_TRAIN_INTERRUPT,
        /// <summary>Of Session.Generate: this text is complete, and the others go on. In a training it is Continue.</summary>
        EndText = onnx_train_next.ONNX_TRAIN_END_TEXT
    }

    /// <summary>Why a training has ended.</summary>
    public enum StopReason {
        Finished = onnx_train_stop_reason.ONNX_TRAIN_FINISHED,
        Interrupted = onnx_train_stop_reason.ONNX_TRAIN_INTERRUPTED,
        EarlyStop = onnx_train_stop_reason.ONNX_TRAIN_EARLY_STOP,
        TimeLimit = onnx_train_stop_reason.ONNX_TRAIN_TIME_LIMIT,
        Stopped = onnx_train_stop_reason.ONNX_TRAIN_STOPPED,
        /// <summary>The option "stop-at".</summary>
        Target = onnx_train_stop_reason.ONNX_TRAIN_TARGET
    }

    /// <summary>What was found in a model: an obstacle to its training, or something worth knowing.</summary>
    public sealed class Finding {
        internal Finding(string subject, string what, string advice) {
            Subject = subject;
            What = what;
            Advice = advice;
        }

        /// <summary>A node, a weight, a part of the work.</summary>
        public string Subject { get; }
        public string What { get; }
        /// <summary>What to do; may be "".</summary>
        public string Advice { get; }
    }

    /// <summary>Whether a forward model can be trained, and everything that is in the way.</summary>
    public sealed class Report {
        /// <summary>What the command onnx-train check prints.</summary>
        public string Text { get; internal set; }
        /// <summary>The expression of the loss that the model was tried with.</summary>
        public string Loss { get; internal set; }
        /// <summary>Why it cannot be trained, in one line; "" when it can.</summary>
        public string Failure { get; internal set; }
        public IReadOnlyList<Finding> Obstacles { get; internal set; }
        public IReadOnlyList<Finding> Findings { get; internal set; }
    }

    /// <summary>An input or output of an entry point, or a state.</summary>
    public sealed class Port {
        internal Port(string name, string role, string of, ElementType type, long[] shape, bool hasDefault) {
            Name = name;
            Role = role;
            Of = of;
            Type = type;
            Shape = shape;
            HasDefault = hasDefault;
        }

        public string Name { get; }
        /// <summary>"learning_rate", "loss", "grad_norm", ...; "" for the model's own data.</summary>
        public string Role { get; }
        /// <summary>The value that it belongs to; mostly "".</summary>
        public string Of { get; }
        public ElementType Type { get; }
        /// <summary>-1 for a size that the model leaves open; null where not even the rank is known.</summary>
        public IReadOnlyList<long> Shape { get; }
        /// <summary>Whether an input may be left out.</summary>
        public bool HasDefault { get; }
    }

    /// <summary>What a run of an entry point executes.</summary>
    public sealed class Plan {
        /// <summary>What the command onnx-train show --plan prints.</summary>
        public string Text { get; internal set; }
        /// <summary>The same as an array with an object a node.</summary>
        public string Json { get; internal set; }
        /// <summary>Bytes of gradients and activations at their peak, workspace included.</summary>
        public ulong ArenaBytes { get; internal set; }
        public ulong WorkspaceBytes { get; internal set; }
        public ulong ConstantBytes { get; internal set; }
    }

    /// <summary>Where the tensors of a session are, in the numbers of DLPack.</summary>
    public sealed class Device {
        /// <summary>DLDeviceType: 1 is the host, 2 is CUDA.</summary>
        public int Type { get; internal set; }
        public int Id { get; internal set; }
        /// <summary>A cudaStream_t on CUDA; zero where the device has none.</summary>
        public IntPtr Stream { get; internal set; }
    }

    /// <summary>A step of a training, counted from 1, as its epoch is.</summary>
    public sealed class Step {
        public long Number { get; internal set; }
        public long Epoch { get; internal set; }
        public long Samples { get; internal set; }
        /// <summary>Of the step's samples, before the update.</summary>
        public double Loss { get; internal set; }
        public double LearningRate { get; internal set; }
        /// <summary>NaN where the model has none.</summary>
        public double Accuracy { get; internal set; }
        public double GradNorm { get; internal set; }
        public double Seconds { get; internal set; }
        /// <summary>Of a model with loss scaling; else 0.</summary>
        public double LossScale { get; internal set; }
        /// <summary>With loss scaling, the gradients overflow, and the weights stay as they are.</summary>
        public bool Skipped { get; internal set; }
        /// <summary>Of the samples; 0 of a model that reads no texts.</summary>
        public long Tokens { get; internal set; }
        /// <summary>
        /// What the step computes against what the machine can, about 0 to 1; NaN in the first ten seconds, of a model without
        /// products and convolutions, and of several ranks on CPUs.
        /// </summary>
        public double Utilization { get; internal set; }
    }

    /// <summary>An evaluation within a training.</summary>
    public sealed class Evaluation {
        public long Step { get; internal set; }
        public long Epoch { get; internal set; }
        /// <summary>Over all that counts since the previous evaluation; NaN where nothing does.</summary>
        public double TrainLoss { get; internal set; }
        /// <summary>The best so far, in the metric of the option "best".</summary>
        public bool Best { get; internal set; }
        /// <summary>Empty without evaluation data.</summary>
        public IReadOnlyDictionary<string, double> Metrics { get; internal set; }
        /// <summary>What metrics say by class: valid within the callback.</summary>
        public IReadOnlyList<Tensor> Tables { get; internal set; }
    }
}
