"""Loggers: TensorBoard, Weights & Biases, trackio and MLflow."""
