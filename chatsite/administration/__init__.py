"""The admin site as a whole: what every screen obeys, and its front page. The screens are their apps' own."""
