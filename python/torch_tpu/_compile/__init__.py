"""``torch.compile(backend="tpu")``: Dynamo and AOTAutograd in front, the device's own recorder and lowerings behind.

``backend`` is what Dynamo calls, ``program`` runs one ATen graph, ``schedule`` decides which of its nodes go together.
"""
