using System;
using System.Collections.Generic;

namespace OnnxTrain {
    /// <summary>Data files, as the command's --data takes them. Any number of threads may read one.</summary>
    public sealed unsafe class Dataset : DataSource, IDisposable {
        private readonly DatasetHandle handle;

        private Dataset(IntPtr address) {
            handle = new DatasetHandle(address);
        }

        /// <summary>
        /// What an entry point of the session takes, with the options of data. Null for `entry`: that which trains, or
        /// "predict" where there is none.
        /// </summary>
        public static Dataset Open(string path, Session session, string entry = null, params ValueTuple<string, string>[] options) {
            using (var arguments = new Arguments()) {
                IntPtr dataset;
                Results.Check(Native.onnx_train_dataset_open_with(arguments.Text(path), session?.Handle ?? SessionHandle.None,
                                                                  arguments.TextOrNull(entry), arguments.Options(options),
                                                                  Results.Size(options.Length), &dataset));
                return new Dataset(dataset);
            }
        }

        /// <summary>All arrays of a file that names them: .npz and .npy.</summary>
        public static Dataset Open(string path) => Open(path, null);

        /// <summary>The tensors of a safetensors file and, as its metadata, its texts; there are no samples.</summary>
        public static Dataset OpenSafetensors(string path) {
            using (var arguments = new Arguments()) {
                IntPtr dataset;
                Results.Check(Native.onnx_train_safetensors_open(arguments.Text(path), &dataset));
                return new Dataset(dataset);
            }
        }

        /// <summary>Writes tensors, and texts by name, to a safetensors file, atomically.</summary>
        public static void SaveSafetensors(string path, Tensor[] tensors, params ValueTuple<string, string>[] metadata) {
            using (var arguments = new Arguments()) {
                Results.Check(Native.onnx_train_safetensors_save(arguments.Text(path), arguments.Tensors(tensors),
                                                                 Results.Size(tensors.Length), arguments.Options(metadata),
                                                                 Results.Size(metadata.Length)));
            }
        }

        /// <summary>The arrays in the element types of the file: memory of mapped files where possible, not to be written.</summary>
        public IReadOnlyList<Tensor> Tensors {
            get {
                onnx_train_tensor* arrays;
                UIntPtr count;
                Results.Check(Native.onnx_train_dataset_arrays(Files, &arrays, &count));
                var tensors = Results.Tensors(arrays, count, () => Handle.Open(handle, nameof(Dataset)));
                foreach (var tensor in tensors) tensor.IsReadOnly = true;
                return tensors;
            }
        }

        public long Samples => Size(0).Samples;

        /// <summary>Batches of an epoch; for 0 with the batch size of a training without the option "batch-size".</summary>
        public long BatchesOf(long batchSize) => Size(batchSize).Batches;

        /// <summary>What a file says of its arrays; the names of classes and categories of a table.</summary>
        public IReadOnlyDictionary<string, string> Metadata {
            get {
                var entries = new Dictionary<string, string>();
                byte* key;
                for (long i = 0;; ++i) {
                    var text = Results.Text(Native.onnx_train_dataset_metadata(Files, Results.Size(i), &key));
                    if (text == null) return entries;
                    entries[Results.Text(key)] = text;
                }
            }
        }

        public override Tensor[] Next() => new Tensor[0];

        public void Dispose() => handle.Dispose();

        internal override DatasetHandle Files => Handle.Open(handle, nameof(Dataset));

        private (long Samples, long Batches) Size(long batchSize) {
            long samples, batches;
            Results.Check(Native.onnx_train_dataset_size(Files, batchSize, &samples, &batches));
            return (samples, batches);
        }
    }
}
