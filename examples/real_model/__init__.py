"""A real pretrained model, trained on three small tasks."""
