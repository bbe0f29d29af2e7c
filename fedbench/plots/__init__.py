"""The style of figures (`style`), and the figures of runs (`runs`)."""
