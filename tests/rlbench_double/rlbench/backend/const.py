"""Names in a folder of demonstrations."""

IMAGE_FORMAT = "%d.png"
EPISODES_FOLDER = "episodes"
EPISODE_FOLDER = "episode%d"
VARIATIONS_FOLDER = "variation%d"
LOW_DIM_PICKLE = "low_dim_obs.pkl"
VARIATION_DESCRIPTIONS = "variation_descriptions.pkl"
TTT_FILE = "task_design.ttt"
DEPTH_SCALE = 2**24 - 1
