"""The status page in headless Chromium: accessibility checks and screenshots."""
