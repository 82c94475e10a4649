package onnxtrain;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

/** Data files, as the command's --data takes them. Any number of threads may read one. */
public final class Dataset extends DataSource implements AutoCloseable {
  private final Handle handle;

  private Dataset(long address) {
    handle = Handle.of(this, address, Native::datasetFree, "dataset");
  }

  /** What the entry point of the session that trains takes, or "predict" where there is none. */
  public static Dataset open(String path, Session session, String... options) {
    return openFor(path, session, null, options);
  }

  /** What an entry point of the session takes, with the options of data. */
  public static Dataset openFor(String path, Session session, String entry, String... options) {
    final String[] checked = Options.checked(options);
    return new Dataset(session.call(address -> Native.datasetOpen(path, address, entry, checked)));
  }

  /** All arrays of a file that names them: .npz and .npy. */
  public static Dataset open(String path) {
    return new Dataset(Native.datasetOpen(path, 0, null, new String[0]));
  }

  /** The tensors of a safetensors file and, by metadata(), its texts; there are no samples. */
  public static Dataset openSafetensors(String path) {
    return new Dataset(Native.safetensorsOpen(path));
  }

  /** Writes tensors, and texts by name, to a safetensors file, atomically. */
  public static void saveSafetensors(String path, Tensor[] tensors, String... metadata) {
    Native.safetensorsSave(path, tensors, Options.checked(metadata));
  }

  /**
   * The arrays in the element types of the file: read-only memory of mapped files where that is possible. It stays as long
   * as a buffer of it is reachable, after close(), too.
   */
  public Tensor[] tensors() {
    final Tensor[] arrays = handle.use(Native::datasetArrays);
    final Handle owner = handle;
    for (Tensor array : arrays) {
      array.readOnly().validFor(() -> {
        if (owner.isClosed()) throw new IllegalStateException("the dataset is closed");
      });
      if (array.root() == null) continue;
      owner.acquire();
      Reclaimer.register(array.root(), owner::release);
    }
    return arrays;
  }

  public long samples() {
    return handle.use(address -> Native.datasetSize(address, 0))[0];
  }

  /** Batches of an epoch; for 0 with the batch size of a training without the option "batch-size". */
  public long batchesOf(long batchSize) {
    return handle.use(address -> Native.datasetSize(address, batchSize))[1];
  }

  /** What a file says of its arrays; the names of classes and categories of a table. */
  public Map<String, String> metadata() {
    return map(handle.use(Native::datasetMetadata));
  }

  static Map<String, String> map(String[] pairs) {
    final Map<String, String> entries = new LinkedHashMap<>();
    for (int i = 0; i < pairs.length; i += 2) entries.put(pairs[i], pairs[i + 1]);
    return Collections.unmodifiableMap(entries);
  }

  @Override
  public Tensor[] next() {
    return new Tensor[0];
  }

  @Override
  long acquire() {
    return handle.acquire();
  }

  @Override
  void release() {
    handle.release();
  }

  @Override
  public void close() {
    handle.close();
  }
}
