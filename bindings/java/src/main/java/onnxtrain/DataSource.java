package onnxtrain;

/**
 * The data of a training: arrays (DataSource.of), files (Dataset), or a class of the program that gives batches. Used by
 * one training at a time, on its thread. An exception of a function ends the training, and the call throws it.
 */
public abstract class DataSource {
  /** Arrays with one sample per row, which the library shuffles and cuts into batches. */
  public static DataSource of(Tensor... arrays) {
    final Tensor[] copy = arrays.clone();
    return new DataSource() {
      @Override
      public Tensor[] next() {
        return new Tensor[0];
      }

      @Override
      Tensor[] arrays() {
        return copy;
      }
    };
  }

  /** Starts epoch `epoch`, counted from 0. */
  public void begin(long epoch) {}

  /**
   * The inputs of the next batch; none: the epoch is over. Their first dimension is the number of samples, which may
   * change. Their memory is read until the next call.
   */
  public abstract Tensor[] next();

  /** Batches of an epoch; 0: not known. Schedules that have an end need it, unless the option "steps" is given. */
  public long batches() {
    return 0;
  }

  Tensor[] arrays() {
    return null;
  }

  /** The address of files, which stays valid until release(); else 0. */
  long acquire() {
    return 0;
  }

  void release() {}
}
