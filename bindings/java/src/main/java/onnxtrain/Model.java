package onnxtrain;

import java.util.List;
import java.util.Map;

/** A forward model, a training model or a checkpoint. Any number of threads may read one. */
public final class Model implements AutoCloseable {
  private final Handle handle;

  Model(long address) {
    handle = Handle.of(this, address, Native::modelFree, "model");
  }

  /** Reads an .onnx file; its large tensors are mapped, so the file must not be changed while the model lives. */
  public static Model load(String path) {
    return new Model(Native.modelLoad(path));
  }

  public static Model fromBytes(byte[] bytes) {
    return new Model(Native.modelFromBytes(bytes));
  }

  /** Writes the model atomically. */
  public void save(String path) {
    handle.use(address -> {
      Native.modelSave(address, path);
      return null;
    });
  }

  public byte[] toBytes() {
    return handle.use(Native::modelToBytes);
  }

  /** Keys and values; those of a training model are in onnx_train.h. */
  public Map<String, String> metadata() {
    return Dataset.map(handle.use(Native::modelMetadata));
  }

  /** What was guessed, left out or changed when this training model was built. */
  public List<Finding> notes() {
    return Finding.list(handle.use(Native::modelNotes));
  }

  /** A training model: build("loss", "cross_entropy", "optimizer", "adamw"). */
  public Model build(String... options) {
    final String[] checked = Options.checked(options);
    return new Model(handle.use(address -> Native.modelBuild(address, checked)));
  }

  /** The same with a loss that is a model. */
  public Model buildWithLoss(Model loss, String... options) {
    final String[] checked = Options.checked(options);
    return new Model(handle.use(
        address -> loss.handle.use(other -> Native.modelBuildWithLoss(address, other, checked))));
  }

  /** A training model for given data, and what was chosen for them. */
  public static final class Built {
    public final Model model;
    /** The loss that was chosen and why, in one line. */
    public final String note;

    private Built(Model model, String note) {
      this.model = model;
      this.note = note;
    }
  }

  /** For data in files, which choose the loss if the options have none. */
  public Built buildForData(String path, String... options) {
    return buildForData(path, new Tensor[0], options);
  }

  /** The same for arrays. */
  public Built buildForData(Tensor[] arrays, String... options) {
    return buildForData(null, arrays, options);
  }

  private Built buildForData(String path, Tensor[] arrays, String[] options) {
    final String[] checked = Options.checked(options);
    final String[] note = new String[1];
    final long built = handle.use(address -> Native.modelBuildForData(address, path, arrays, checked, note));
    return new Built(new Model(built), note[0]);
  }

  /** The open sizes that the arrays have, for the option "dim". */
  public String sizes(Tensor... arrays) {
    return handle.use(address -> Native.modelSizes(address, arrays));
  }

  /** Whether the model can be trained. Succeeds for one that cannot, too. */
  public Report check(String... options) {
    final String[] checked = Options.checked(options);
    return new Report(handle.use(address -> Native.modelCheck(address, checked)));
  }

  /** The inference model alone, with the options of the command onnx-train export. */
  public Model export(String... options) {
    final String[] checked = Options.checked(options);
    return new Model(handle.use(address -> Native.modelExport(address, checked)));
  }

  /**
   * Writes the model or the folder of the option "into" with trained weights to `path`. Returns what was written, guessed
   * or left out, in lines.
   */
  public String exportInto(String path, String... options) {
    final String[] checked = Options.checked(options);
    return handle.use(address -> Native.modelExportInto(address, checked, path));
  }

  /** Writes the adapters in PEFT's format. */
  public void saveAdapter(String folder) {
    handle.use(address -> {
      Native.modelSaveAdapter(address, folder);
      return null;
    });
  }

  /** One entry point as a plain ONNX model: each state is an input, its next value an output. */
  public Model flatten(String entry) {
    return new Model(handle.use(address -> Native.modelFlatten(address, entry)));
  }

  /** The forward and the backward pass, two models, for programs with a loss and an optimizer of their own. */
  public Model[] differentiate(String... options) {
    final String[] checked = Options.checked(options);
    final long[] passes = handle.use(address -> Native.modelDifferentiate(address, checked));
    return new Model[] {new Model(passes[0]), new Model(passes[1])};
  }

  /** "outputs", "gradient", "vjp", "jvp" or "hvp" as a model. */
  public Model derivative(String kind, String... options) {
    final String[] checked = Options.checked(options);
    return new Model(handle.use(address -> Native.modelDerivative(address, kind, 0, checked)));
  }

  /** The same of a loss that is a model. */
  public Model derivative(String kind, Model loss, String... options) {
    final String[] checked = Options.checked(options);
    return new Model(handle.use(
        address -> loss.handle.use(other -> Native.modelDerivative(address, kind, other, checked))));
  }

  /** A copy with other weights, by the names of initializers. Strict: a name that the model lacks is an error. */
  public Model withWeights(boolean strict, Tensor... weights) {
    return new Model(handle.use(address -> Native.modelWithWeights(address, weights, strict)));
  }

  @Override
  public void close() {
    handle.close();
  }

  Handle handle() {
    return handle;
  }
}
